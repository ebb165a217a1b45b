"""Fields of the OpenAI API that the server refuses, with the remedy of each.

A refused field may have a value that changes nothing, as `"functions": []`. Fields of no table and no body are unknown.
"""

from app.protocols.field_policy import FieldPolicy, Refusal

_NO_FUNCTIONS = "the older name of tools: send tools and tool_choice"
_ONLY_TEXT = "the server generates only text: omit the field"
_ONLY_TEXT_READ = "the server reads only text: omit the field"
_CACHE = "common prefixes of prompts are cached automatically: omit the field"
_IN_MESSAGE = "state it in a message, or limit the text by max_completion_tokens"
_OWN_TURN = "the model always answers in a new turn: omit the field"

# Of vLLM's own fields those that its users send most.
_VLLM = {
    "skip_special_tokens": Refusal("special tokens are never part of a text: omit the field", (True,)),
    "include_stop_str_in_output": Refusal(
        "a text ends before its stop string: omit the field and append the string", (False,)
    ),
    "use_beam_search": Refusal("texts are sampled, or greedy with temperature 0: omit the field", (False,)),
}
_NEW_TURN = {
    "add_generation_prompt": Refusal(_OWN_TURN, (True,)),
    "continue_final_message": Refusal(_OWN_TURN, (False,)),
}

COMPLETIONS = FieldPolicy(
    {
        **_VLLM,
        "echo": Refusal("the prompt is not repeated: put it before the text", (False,)),
        "suffix": Refusal("a text is continued, not filled in: omit the field", ("",)),
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
        "chat_template": Refusal("the model's own template is used: send a formatted prompt to /v1/completions"),
        "chat_template_kwargs": Refusal(
            "the model's template receives only messages: send a formatted prompt to /v1/completions"
        ),
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
