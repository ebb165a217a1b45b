"""Fields of clients that generate text: those that ask for nothing are accepted, others are done or refused by name."""

import pytest

from app.protocols.openai.codec import OpenAiCodec
from app.server.build import build_routes
from frameworks.core.errors import UnknownField
from tests.app.protocols.openai.decoding import assert_refused, decode, decode_error

MESSAGES: list[dict[str, object]] = [{"role": "user", "content": "a"}]
BASES: dict[str, dict[str, object]] = {
    "/v1/completions": {"model": "llama", "prompt": "a"},
    "/v1/chat/completions": {"model": "llama", "messages": MESSAGES},
    "/v1/responses": {"model": "llama", "input": "a"},
}
CODECS = {route.path: route.codec for route in build_routes().routes if isinstance(route.codec, OpenAiCodec)}

# The defaults of vLLM's request models, which its own clients send.
OF_VLLM: dict[str, object] = {
    "use_beam_search": False, "length_penalty": 1.0, "early_stopping": False, "watermarking": None,
    "include_stop_str_in_output": False, "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None, "truncation_side": None, "logprob_token_ids": None, "allowed_token_ids": None,
    "bad_words": [], "logits_processors": None, "thinking_token_budget": None, "repetition_detection": None,
    "guided_json": None, "guided_regex": None, "guided_choice": None, "guided_grammar": None,
    "guided_decoding_backend": None, "guided_whitespace_pattern": None, "priority": 0, "request_id": None,
    "return_token_ids": None, "return_token_offsets": False, "return_mm_kwargs": True,
    "routed_experts_prompt_start": 0, "cache_salt": None, "kv_transfer_params": None, "ec_transfer_params": None,
    "vllm_xargs": None, "stream_interval": None, "seed": None, "top_k": None, "min_p": None,
    "repetition_penalty": None, "user": None, "temperature": None, "top_p": None, "logit_bias": None,
}  # fmt: skip
OF_TEXTS: dict[str, object] = {
    **OF_VLLM, "stop_token_ids": [], "ignore_eos": False, "min_tokens": 0, "session_id": None, "stop": [], "n": 1,
    "stream": False, "stream_options": None, "structured_outputs": None, "return_tokens_as_token_ids": None,
    "prompt_logprobs": None, "echo": False, "response_format": None, "best_of": None, "presence_penalty": None,
    "frequency_penalty": None,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, object]] = {
    "/v1/completions": {
        **OF_TEXTS, "suffix": None, "logprobs": None, "max_tokens": None, "prompt_embeds": None,
        "add_special_tokens": True,
    },
    "/v1/chat/completions": {
        **OF_TEXTS, "logprobs": False, "top_logprobs": 0, "max_tokens": None, "max_completion_tokens": None,
        "tools": None, "tool_choice": "none", "parallel_tool_calls": True, "reasoning_effort": None,
        "include_reasoning": True, "add_generation_prompt": True, "continue_final_message": False,
        "add_special_tokens": False, "documents": None, "chat_template": None, "chat_template_kwargs": {},
        "media_io_kwargs": None, "mm_processor_kwargs": None, "return_prompt_text": None,
    },
    "/v1/responses": {
        **OF_VLLM, "background": False, "include": None, "instructions": None, "max_output_tokens": None,
        "max_tool_calls": None, "metadata": None, "parallel_tool_calls": True, "previous_response_id": None,
        "prompt": None, "reasoning": None, "service_tier": "auto", "store": False, "stream": False, "text": None,
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "truncation": "disabled", "prompt_cache_key": None,
        "mm_processor_kwargs": None, "enable_response_messages": False, "previous_input_messages": None,
        "previous_response": None, "structured_outputs": None, "stop": [], "ignore_eos": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("path", BASES)
def test_defaults_of_vllm_are_harmless(path: str) -> None:
    plain = decode(CODECS[path], **BASES[path])
    assert decode(CODECS[path], **BASES[path], **DEFAULTS[path]).request == plain.request


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("length_penalty", 1), ("bad_words", []), ("thinking_token_budget", -1), ("truncation_side", "left"),
        ("kv_transfer_params", {}), ("vllm_xargs", {}), ("stream_interval", 1), ("watermarking", False),
        ("return_mm_kwargs", False), ("logits_processors", []),
    ],
)  # fmt: skip
def test_neutral_values_are_harmless(path: str, field: str, value: object) -> None:
    plain = decode(CODECS[path], **BASES[path])
    assert decode(CODECS[path], **BASES[path], **{field: value}).request == plain.request


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("length_penalty", 0.5, "texts are sampled"),
        ("truncate_prompt_tokens", 5, "a prompt is read whole"),
        ("allowed_token_ids", [1], "regex, choice or json_schema"),
        ("logprob_token_ids", [1], "send their number"),
        ("thinking_token_budget", 5, "maximum number of tokens"),
        ("guided_regex", "a", "structured_outputs"),
        ("request_id", "r", "x-request-id"),
        ("cache_salt", "s", "tenants share no cached prompts"),
        ("kv_transfer_params", {"a": 1}, "one server"),
        ("repetition_detection", {"min_count": 2}, "repetition_penalty"),
        ("watermarking", True, "no watermark"),
    ],
)
def test_requests_for_other_texts_are_refused(path: str, field: str, value: object, words: str) -> None:
    assert_refused(CODECS[path], field, "expected ", words, **BASES[path], **{field: value})


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("field", ["bad_word", "guided", "max_token", "reasoning_budget"])
def test_fields_of_no_client_are_refused(path: str, field: str) -> None:
    assert isinstance(decode_error(CODECS[path], **BASES[path], **{field: None}), UnknownField)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("include_reasoning", False, "reasoning_content"),
        ("documents", [{"text": "a"}], "put the documents into a message"),
        ("mm_processor_kwargs", {"a": 1}, "only text"),
        ("return_prompt_text", True, "/v1/tokenize"),
        ("top_logprobs", 3, '"logprobs": true'),
    ],
)
def test_fields_of_chats_are_refused(field: str, value: object, words: str) -> None:
    path = "/v1/chat/completions"
    assert_refused(CODECS[path], field, words, **BASES[path], **{field: value})


def test_nested_fields_of_vllm() -> None:
    codec, base = CODECS["/v1/chat/completions"], BASES["/v1/chat/completions"]
    tool = {"type": "function", "function": {"name": "f", "defer_loading": None}, "defer_loading": False}
    plain = decode(codec, **base, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert decode(codec, **base, tools=[tool], tool_choice="none").request == plain.request
    options = {"include_usage": True, "continuous_usage_stats": False}
    assert decode(codec, **base, stream=True, stream_options=options).stream


def test_structured_outputs_of_vllm() -> None:
    codec, base = CODECS["/v1/completions"], BASES["/v1/completions"]
    neutral: dict[str, object] = {
        "json": None, "regex": "a+", "choice": None, "grammar": None, "json_object": None, "structural_tag": None,
        "disable_fallback": False, "disable_any_whitespace": False, "disable_additional_properties": False,
        "whitespace_pattern": None,
    }  # fmt: skip
    plain = decode(codec, **base, structured_outputs={"regex": "a+"})
    assert decode(codec, **base, structured_outputs=neutral).request == plain.request
    for field, value, words in (
        ("grammar", "root ::= a", "regex, choice or json"),
        ("disable_any_whitespace", True, "omit the field"),
        ("disable_additional_properties", True, "additionalProperties"),
    ):
        path = f"structured_outputs.{field}"
        assert_refused(codec, path, words, **base, structured_outputs={"regex": "a", field: value})
    assert isinstance(decode_error(codec, **base, structured_outputs={"grammars": None}), UnknownField)


def test_reasoning_of_vllm_message_is_read() -> None:
    codec = CODECS["/v1/chat/completions"]
    turns = [{"role": "assistant", "content": "b", name: "hm"} for name in ("reasoning", "reasoning_content")]
    first, second = (decode(codec, model="llama", messages=[*MESSAGES, turn]).request for turn in turns)
    assert first == second
    assert first.prompts[0].messages[1].reasoning == "hm"
