"""Fields of the OpenAI API that the server refuses, with the remedy of each, and those that it ignores.

A refused field may have a value that changes nothing, as `"functions": []`. Fields of no table and no body are unknown.
"""

from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal

_NO_FUNCTIONS = "the older name of tools: send tools and tool_choice"
_ONLY_TEXT = "the server generates only text: omit the field"
_ONLY_TEXT_READ = "the server reads only text: omit the field"
# Common prefixes of prompts are cached automatically.
_CACHE = {"prompt_cache_retention": Ignored(neutral=("in_memory",)), "prompt_cache_options": Ignored()}
# No template reads it.
_VERBOSITY = Ignored(neutral=("medium",))
# Fields of Ollama and llama.cpp for their own memory.
_OF_RUNTIMES = {"keep_alive": Ignored(), "cache_prompt": Ignored(neutral=(True,)), "id_slot": Ignored(neutral=(-1,))}
_OWN_TURN = "the model always answers in a new turn: omit the field"

_NO_SPECIAL = "special tokens are never part of a text: omit the field"
_NO_BEAMS = "texts are sampled, or greedy with temperature 0: omit the field"
_READ_WHOLE = "a prompt is read whole: shorten it, and omit the field"
_ONE_SERVER = "one server computes a prompt and its text: omit the field"
_STRUCTURED = "send structured_outputs, or regex, choice or json_schema"

# Of vLLM's own fields for text generation, those that the server does not have.
_VLLM = {
    "skip_special_tokens": Refusal(_NO_SPECIAL, (True,)),
    "spaces_between_special_tokens": Refusal(_NO_SPECIAL, (True,)),
    "return_token_ids": Refusal("send logprobs and return_tokens_as_token_ids: omit the field", (False,)),
    "return_token_offsets": Refusal("post the text to /tokenize with inputs, which returns them", (False,)),
    "return_mm_kwargs": Refusal(_ONLY_TEXT_READ, (True, False)),
    "use_beam_search": Refusal(_NO_BEAMS, (False,)),
    "length_penalty": Refusal(_NO_BEAMS, (1, 1.0)),
    "early_stopping": Refusal(_NO_BEAMS, (False,)),
    "watermarking": Refusal("texts have no watermark: omit the field", (False,)),
    "truncate_prompt_tokens": Refusal(_READ_WHOLE),
    # They have no effect without truncate_prompt_tokens.
    "truncation_side": Refusal(_READ_WHOLE, ("left", "right")),
    "logprob_token_ids": Refusal("the most likely tokens are reported: send their number"),
    "allowed_token_ids": Refusal("send regex, choice or json_schema, or a logit_bias"),
    "logits_processors": Refusal("send logit_bias", ([],)),
    "thinking_token_budget": Refusal("limit reasoning and text together by the maximum number of tokens", (-1,)),
    "repetition_detection": Refusal("send repetition_penalty, or limit the number of tokens"),
    "guided_json": Refusal(_STRUCTURED),
    "guided_regex": Refusal(_STRUCTURED),
    "guided_choice": Refusal(_STRUCTURED),
    "guided_grammar": Refusal(_STRUCTURED),
    "guided_decoding_backend": Ignored(),
    "guided_whitespace_pattern": Refusal("omit the field"),
    "request_id": Refusal("send the header x-request-id"),
    "cache_salt": Refusal("tenants share no cached prompts: omit the field"),
    "kv_transfer_params": Refusal(_ONE_SERVER, ({},)),
    "ec_transfer_params": Refusal(_ONE_SERVER, ({},)),
    "vllm_xargs": Refusal("the server has no extensions of vLLM: omit the field", ({},)),
    "routed_experts_prompt_start": Refusal("the experts of tokens are not reported: omit the field", (0,)),
    # A piece is sent when it is generated.
    "stream_interval": Ignored(neutral=(1,)),
}
_MEDIA = {
    "mm_processor_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
    "media_io_kwargs": Refusal(_ONLY_TEXT_READ, ({},)),
}

COMPLETIONS = FieldPolicy(
    {
        **_VLLM,
        **_OF_RUNTIMES,
        "prompt_embeds": Refusal("send a text or token ids as prompt"),
        "best_of": Refusal("texts are not ranked: request all of them by n, and logprobs to rank them", (1,)),
    }
)
CHAT = FieldPolicy(
    {
        **_VLLM,
        **_OF_RUNTIMES,
        **_MEDIA,
        "best_of": Refusal("texts are not ranked: request all of them by n, and logprobs to rank them", (1,)),
        "documents": Refusal("put the documents into a message", ([],)),
        "include_reasoning": Refusal("the reasoning is apart, in reasoning_content: omit the field", (True,)),
        "return_prompt_text": Refusal("post the messages to /v1/tokenize: omit the field", (False,)),
        "functions": Refusal(_NO_FUNCTIONS, ([],)),
        "function_call": Refusal(_NO_FUNCTIONS, ("none", "auto")),
        "tool_prompt": Refusal("the model's template writes the tools: state it in a message"),
        "audio": Refusal(_ONLY_TEXT),
        "modalities": Refusal(_ONLY_TEXT, (["text"],)),
        "verbosity": _VERBOSITY,
        # A predicted text saves no time here.
        "prediction": Ignored(),
        "web_search_options": Refusal("the server searches nothing: put the facts into a message"),
        "moderation": Refusal("the server does not moderate texts: omit the field"),
        # No response is stored, and none can be read.
        "store": Ignored(neutral=(False,)),
        # There is one tier, and `priority` for a position in the queue.
        "service_tier": Ignored(neutral=("auto", "default")),
        **_CACHE,
        "echo": Refusal("the last message is not repeated: put it before the text", (False,)),
        "add_special_tokens": Refusal("the model's template writes the special tokens: omit the field", (False,)),
        "chat_template": Refusal("the model's own template is used: send a formatted prompt to /v1/completions"),
    }
)
_NO_STORE = "no response is stored: send the items of earlier turns in input, and omit the field"
_NO_BACKGROUND = "a response is sent while it is generated: omit the field, and send stream"
RESPONSES = FieldPolicy(
    {
        **_VLLM,
        "add_generation_prompt": Refusal(_OWN_TURN, (True,)),
        "continue_final_message": Refusal(_OWN_TURN, (False,)),
        **_MEDIA,
        "structured_outputs": Refusal('send "text": {"format": …}'),
        "enable_response_messages": Refusal("the items of the response are in output: omit the field", (False,)),
        "previous_input_messages": Refusal("send the items of earlier turns in input"),
        "previous_response": Refusal("send the items of earlier turns in input"),
        "store": Refusal(
            "no response is stored: omit the field, and send the items of earlier turns in input", (False,)
        ),
        "previous_response_id": Refusal(_NO_STORE),
        "conversation": Refusal(_NO_STORE),
        "prompt": Refusal("no prompts are stored: send instructions and input"),
        "background": Refusal(_NO_BACKGROUND, (False,)),
        "background_options": Refusal(_NO_BACKGROUND),
        # No items are left out. A prompt that does not fit is refused.
        "truncation": Ignored(neutral=("disabled",)),
        "context_management": Ignored(neutral=([],)),
        "max_tool_calls": Refusal("the server runs no tools: limit the calls in the client"),
        "service_tier": CHAT.refusals["service_tier"],
        "moderation": CHAT.refusals["moderation"],
        "image": Refusal(_ONLY_TEXT_READ),
        "access_programs": Refusal("omit the field"),
        **_CACHE,
        # Fields of the other routes of generation.
        "messages": Refusal("send input"),
        "max_tokens": Refusal("send max_output_tokens"),
        "max_completion_tokens": Refusal("send max_output_tokens"),
        "reasoning_effort": Refusal('send "reasoning": {"effort": …}'),
        "response_format": Refusal('send "text": {"format": …}'),
        "verbosity": Refusal('send "text": {"verbosity": …}'),
        "functions": Refusal(_NO_FUNCTIONS, ([],)),
        "logprobs": Refusal('send "include": ["message.output_text.logprobs"]', (False,)),
        "n": Refusal("a response has one text: send several requests", (1,)),
        "stop": Refusal("this route has no stop strings: use /v1/chat/completions", ([],)),
        "include_stop_str_in_output": Refusal("this route has no stop strings: omit the field", (True, False)),
    }
)
INPUT_TOKENS = FieldPolicy(
    {
        "previous_response_id": RESPONSES.refusals["previous_response_id"],
        "conversation": RESPONSES.refusals["conversation"],
        "truncation": RESPONSES.refusals["truncation"],
        "personality": Refusal("state it in instructions, and omit the field"),
        "messages": Refusal("send input"),
    }
)
RESPONSES_REASONING = FieldPolicy(
    {
        # The response has the reasoning as a whole.
        "summary": Ignored(neutral=("auto",)),
        "generate_summary": Ignored(neutral=("auto",)),
        "context": Refusal("the reasoning items of the input are read: omit the field", ("auto",)),
        "mode": Refusal("send effort", ("standard",)),
    }
)
RESPONSES_TEXT = FieldPolicy({"verbosity": _VERBOSITY})
RESPONSES_TOOL = FieldPolicy(
    {
        "defer_loading": Refusal("the model sees all tools: omit the field", (False,)),
        "allowed_callers": Refusal("only the model calls functions: omit the field", (["direct"], [])),
        "async": Refusal("the client runs the function: omit the field", (False,)),
        "output_schema": Refusal("describe the result in the description"),
    }
)
_USE_ACTIVATION = "send use_activation"
_NOT_PADDED = "texts are not padded to a length: omit the field"
_WHOLE = "a document is scored whole, truncated at the model's limit: send its parts as documents"

# Fields of vLLM for all routes that generate nothing.
_POOLING = {
    "padding": Refusal(_NOT_PADDED, ("do_not_pad",)),
    "request_id": Refusal("send the header x-request-id"),
    **_MEDIA,
    "cache_salt": Refusal("tenants share no cached responses: omit the field"),
    # Older names of vLLM.
    "softmax": Refusal(_USE_ACTIVATION),
    "activation": Refusal(_USE_ACTIVATION),
    "modality": Refusal(_ONLY_TEXT_READ, ("text",)),
}
_OF_INPUT = {
    **_POOLING,
    "add_special_tokens": Refusal("texts are read with the special tokens of the model's files", (True,)),
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
# Of conversations that are embedded.
_ENDINGS = ("add_generation_prompt", "continue_final_message")
EMBEDDINGS = FieldPolicy(
    {
        **{name: refusal for name, refusal in _OF_INPUT.items() if name not in ("modality", *_ENDINGS)},
        **_ENCODED,
        # Fields of Jina's variant of the route.
        "task": Refusal("put the prompt of the task before each text"),
        "late_chunking": Refusal("each text is embedded by itself: omit the field", (False,)),
        "embedding_type": Refusal("send encoding_format", ("float", ["float"])),
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
        **{name: refusal for name, refusal in _OF_INPUT.items() if name not in _ENDINGS},
        **_ENCODED,
        "data": Refusal("send texts as input"),
        "raw_scores": Refusal(_USE_ACTIVATION, (False,)),
        "normalize": Refusal(_USE_ACTIVATION),
    }
)
_NO_SPEAKERS = "the server tells no speakers apart: omit the field"
TRANSCRIPTIONS = FieldPolicy(
    {
        "stream": Refusal("a text is sent when it is complete: omit the field", (False,)),
        "include[]": Refusal("send response_format verbose_json, whose segments have avg_logprob", ([],)),
        # Each model cuts a long sound by itself.
        "chunking_strategy": Ignored(neutral=("auto",)),
        "keywords[]": Refusal("put the words into prompt", ([],)),
        "languages[]": Refusal("send one language", ([],)),
        "known_speaker_names[]": Refusal(_NO_SPEAKERS, ([],)),
        "known_speaker_references[]": Refusal(_NO_SPEAKERS, ([],)),
    }
)
SCORE = FieldPolicy({**_PAIRS, "label_token_ids": Refusal("the scores are those of the model's own head")})
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
        "return_embeddings": Refusal("post the documents to /v1/embeddings", (False,)),
    }
)
TOKENIZE = FieldPolicy(
    {
        "chat_template": Refusal("the model's own template is used: send a formatted prompt"),
        **_MEDIA,
        "inputs": Refusal("name the text prompt; a request in TEI's form has inputs in its first 64 KiB"),
    }
)
_OTHER_VOICES = "the voices are those of the model: send voice"
SPEECH = FieldPolicy(
    {
        "instructions": Refusal("the model reads no instructions: omit the field", ("",)),
        # Fields of other servers for the same route.
        "stream": Refusal('send stream_format: "sse"', (False,)),
        "language": Refusal("the language is that of the model: omit the field", ("Auto",)),
        "task_type": Refusal(_OTHER_VOICES),
        "ref_audio": Refusal(_OTHER_VOICES),
        "ref_text": Refusal(_OTHER_VOICES),
        "max_new_tokens": Refusal("the length is that of the text: omit the field"),
    }
)
