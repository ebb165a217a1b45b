"""Fields of the OpenAI API that the server refuses, with the remedy of each.

A refused field may have a value that changes nothing, as `"functions": []`. Fields of no table and no body are unknown.
"""

from app.protocols.field_policy import FieldPolicy, Refusal

_NO_FUNCTIONS = "the older name of tools: send tools and tool_choice"
_ONLY_TEXT = "the server generates only text: omit the field"
_ONLY_TEXT_READ = "the server reads only text: omit the field"
_CACHE = "common prefixes of prompts are cached automatically: omit the field"
_IN_MESSAGE = "state it in a message, or limit the text by max_completion_tokens"
_IN_RESPONSE = "state it in a message, or limit the text by max_output_tokens"
_OWN_TURN = "the model always answers in a new turn: omit the field"

# Of vLLM's own fields those that its users send most.
_VLLM = {
    "skip_special_tokens": Refusal("special tokens are never part of a text: omit the field", (True,)),
    "include_stop_str_in_output": Refusal(
        "a text ends before its stop string: omit the field and append the string", (False,)
    ),
    "return_token_ids": Refusal("send logprobs and return_tokens_as_token_ids: omit the field", (False,)),
    "use_beam_search": Refusal("texts are sampled, or greedy with temperature 0: omit the field", (False,)),
}
_NEW_TURN = {
    "add_generation_prompt": Refusal(_OWN_TURN, (True,)),
    "continue_final_message": Refusal(_OWN_TURN, (False,)),
}

COMPLETIONS = FieldPolicy(
    {
        **_VLLM,
        "best_of": Refusal("texts are not ranked: request all of them by n, and logprobs to rank them", (1,)),
    }
)
CHAT = FieldPolicy(
    {
        **_VLLM,
        **_NEW_TURN,
        "functions": Refusal(_NO_FUNCTIONS, ([],)),
        "function_call": Refusal(_NO_FUNCTIONS, ("none", "auto")),
        "audio": Refusal(_ONLY_TEXT),
        "modalities": Refusal(_ONLY_TEXT, (["text"],)),
        "verbosity": Refusal(_IN_MESSAGE, ("medium",)),
        "prediction": Refusal("a predicted text saves no time here: omit the field, the response is the same"),
        "web_search_options": Refusal("the server searches nothing: put the facts into a message"),
        "moderation": Refusal("the server does not moderate texts: omit the field"),
        "store": Refusal("the server stores no responses: omit the field", (False,)),
        "service_tier": Refusal(
            "there is one tier: send priority (1 to 9) for a position in the queue", ("auto", "default")
        ),
        "prompt_cache_retention": Refusal(_CACHE, ("in_memory",)),
        "prompt_cache_options": Refusal(_CACHE),
        "echo": Refusal("the last message is not repeated: put it before the text", (False,)),
        "add_special_tokens": Refusal("the model's template writes the special tokens: omit the field", (False,)),
        "chat_template": Refusal("the model's own template is used: send a formatted prompt to /v1/completions"),
        "chat_template_kwargs": Refusal(
            "the model's template receives only messages: send a formatted prompt to /v1/completions"
        ),
    }
)
_NO_STORE = "no response is stored: send the items of earlier turns in input, and omit the field"
_NO_BACKGROUND = "a response is sent while it is generated: omit the field, and send stream"
_ALL_REASONING = "the reasoning is in the response as a whole: omit the field"
RESPONSES = FieldPolicy(
    {
        **_VLLM,
        **_NEW_TURN,
        "store": Refusal(
            "no response is stored: omit the field, and send the items of earlier turns in input", (False,)
        ),
        "previous_response_id": Refusal(_NO_STORE),
        "conversation": Refusal(_NO_STORE),
        "prompt": Refusal("no prompts are stored: send instructions and input"),
        "background": Refusal(_NO_BACKGROUND, (False,)),
        "background_options": Refusal(_NO_BACKGROUND),
        "truncation": Refusal("no items are left out: send only those that fit, and omit the field", ("disabled",)),
        "context_management": Refusal("no items are left out: send only those that fit", ([],)),
        "max_tool_calls": Refusal("the server runs no tools: limit the calls in the client"),
        "service_tier": CHAT.refusals["service_tier"],
        "moderation": CHAT.refusals["moderation"],
        "image": Refusal(_ONLY_TEXT_READ),
        "access_programs": Refusal("omit the field"),
        "prompt_cache_retention": Refusal(_CACHE, ("in_memory",)),
        "prompt_cache_options": Refusal(_CACHE),
        # Fields of the other routes of generation.
        "messages": Refusal("send input"),
        "max_tokens": Refusal("send max_output_tokens"),
        "max_completion_tokens": Refusal("send max_output_tokens"),
        "reasoning_effort": Refusal('send "reasoning": {"effort": …}'),
        "response_format": Refusal('send "text": {"format": …}'),
        "verbosity": Refusal(_IN_RESPONSE, ("medium",)),
        "functions": Refusal(_NO_FUNCTIONS, ([],)),
        "logprobs": Refusal('send "include": ["message.output_text.logprobs"]', (False,)),
        "n": Refusal("a response has one text: send several requests", (1,)),
        "stop": Refusal("this route has no stop strings: use /v1/chat/completions", ([],)),
    }
)
RESPONSES_REASONING = FieldPolicy(
    {
        "summary": Refusal(_ALL_REASONING, ("auto",)),
        "generate_summary": Refusal(_ALL_REASONING, ("auto",)),
        "context": Refusal("the reasoning items of the input are read: omit the field", ("auto",)),
        "mode": Refusal("send effort", ("standard",)),
    }
)
RESPONSES_TEXT = FieldPolicy({"verbosity": Refusal(_IN_RESPONSE, ("medium",))})
RESPONSES_TOOL = FieldPolicy(
    {
        "defer_loading": Refusal("the model sees all tools: omit the field", (False,)),
        "allowed_callers": Refusal("only the model calls functions: omit the field", (["direct"], [])),
        "async": Refusal("the client runs the function: omit the field", (False,)),
        "output_schema": Refusal("describe the result in the description"),
    }
)
_NOT_PADDED = "texts are not padded to a length: omit the field"
_WHOLE = "a document is scored whole, truncated at the model's limit: send its parts as documents"

# Fields of vLLM for all routes that generate nothing.
_POOLING = {
    "truncation_side": Refusal("a text is cut at its end: send the part that matters", ("right",)),
    "padding": Refusal(_NOT_PADDED, ("do_not_pad",)),
    "request_id": Refusal("send the header x-request-id"),
    "mm_processor_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
    "media_io_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
    "cache_salt": Refusal("tenants share no cached responses: omit the field"),
    "modality": Refusal(_ONLY_TEXT_READ, ("text",)),
}
_OF_INPUT = {
    **_POOLING,
    "add_special_tokens": Refusal("texts are read with the special tokens of the model's files", (True,)),
    "messages": Refusal("put the text into input"),
    "add_generation_prompt": Refusal("texts are read without a chat template: omit the field", (False,)),
    "continue_final_message": Refusal("texts are read without a chat template: omit the field", (False,)),
    "chat_template": Refusal("texts are read without a chat template: omit the field"),
    "chat_template_kwargs": Refusal("texts are read without a chat template: omit the field", ({},)),
}
_ENCODED = {
    "embed_dtype": Refusal("base64 holds numbers of float32: omit the field", ("float32",)),
    "endianness": Refusal("base64 holds little-endian numbers: omit the field", ("native", "little")),
}
_PAIRS = {
    **_POOLING,
    "instruction": Refusal("put it into the query"),
    "chat_template_kwargs": Refusal("pairs are read without a chat template: omit the field", ({},)),
}
EMBEDDINGS = FieldPolicy(
    {
        **_OF_INPUT,
        **_ENCODED,
        # Fields of Jina, and of NVIDIA's and Voyage's variants of the route.
        "task": Refusal("put the prompt of the task before each text"),
        "input_type": Refusal("put the prompt of the type before each text"),
        "late_chunking": Refusal("each text is embedded by itself: omit the field", (False,)),
        "embedding_type": Refusal("send encoding_format", ("float",)),
        "return_multivector": Refusal("each text has one vector: omit the field", (False,)),
    }
)
CLASSIFY = FieldPolicy(
    {
        **_OF_INPUT,
        "labels": Refusal("the labels are those of the model"),
        "task": Refusal("omit the field", ("classify",)),
    }
)
POOLING = FieldPolicy(
    {
        **_OF_INPUT,
        **_ENCODED,
        "data": Refusal("send texts as input"),
        "raw_scores": Refusal("send use_activation", (False,)),
    }
)
SCORE = FieldPolicy(_PAIRS)
RERANK = FieldPolicy(
    {
        **_PAIRS,
        "texts": Refusal("name the texts documents; a request in TEI's form has texts in its first 64 KiB"),
        "max_doc_length": Refusal(_WHOLE),
        "max_query_length": Refusal(_WHOLE),
        "overlap_tokens": Refusal(_WHOLE),
        "relevant_spans": Refusal("scores are of whole documents: omit the field"),
        "max_chunks_per_doc": Refusal(_WHOLE),
        "rank_fields": Refusal("a document is one text: put the fields into it"),
    }
)
TOKENIZE = FieldPolicy(
    {
        **_NEW_TURN,
        "chat_template": Refusal("the model's own template is used: send a formatted prompt"),
        "chat_template_kwargs": Refusal("the model's template receives only messages: send a formatted prompt", ({},)),
        "mm_processor_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
        "media_io_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
        "inputs": Refusal("name the text prompt; a request in TEI's form has inputs in its first 64 KiB"),
    }
)
