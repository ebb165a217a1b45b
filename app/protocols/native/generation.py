"""Generated text in the native format: its request, the whole response, and events with the counts in the last one."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.native.fields import DEFAULT_MAX_TOKENS, GENERATION_FIELDS, GenerationOptions
from app.protocols.shared.bodies import read_body
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.constraints import to_constraint
from app.protocols.shared.fields.generation import (
    Messages,
    num_top_logprobs,
    to_conversation,
    to_languages,
    to_sampling,
    to_search,
    to_stopping,
)
from app.protocols.shared.fields.model_inputs import explain_expected_input
from app.protocols.shared.json.body import Document, Node, describe_value
from app.protocols.shared.json.output import list_to_json
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import (
    Choice,
    GenerateAnswer,
    GenerateRequest,
    GenerationSpec,
    Prompt,
    TextDelta,
    TokenText,
    Usage,
)
from frameworks.types import ModelSpec

DONE = b"[DONE]"


class _MessagesRequest(GenerationOptions):
    messages: Messages


def read_generation(
    document: Document, fields: dict[str, Node], spec: ModelSpec, input_field: str
) -> tuple[GenerateRequest, bool]:
    """Read a request for text, and whether to stream the response. Raises InvalidInput, UnknownField."""
    generation = spec.generation
    if generation is None:
        raise InvalidInput(input_field, explain_expected_input(spec))
    options: dict[str, Any] = {name: document.python(fields[name]) for name in GENERATION_FIELDS.intersection(fields)}
    body: GenerationOptions
    prompt: Prompt
    if input_field == "messages":
        check_chat_template(generation)
        conversation = read_body(_MessagesRequest, {**options, "messages": document.python(fields["messages"])})
        body, prompt = conversation, to_conversation(conversation.messages)
    else:
        prompt = _read_prompt(fields["prompt"])
        body = read_body(GenerationOptions, options)
    return build_request(prompt, body, generation)


def build_request(prompt: Prompt, body: GenerationOptions, generation: GenerationSpec) -> tuple[GenerateRequest, bool]:
    """Return the request, and whether to stream the response. Raises InvalidInput."""
    request = GenerateRequest(
        (prompt,),
        to_search(body, to_sampling(body, generation, num_top_logprobs(body.logprobs)), generation),
        to_stopping(body, generation, DEFAULT_MAX_TOKENS),
        to_constraint(body),
        body.n or 1,
        prompt_options=to_languages(body, generation),
    )
    return request, bool(body.stream)


def check_chat_template(generation: GenerationSpec) -> None:
    """Raise InvalidInput for a model that cannot format messages."""
    if not generation.has_chat_template:
        raise InvalidInput("messages", "expected a model with a chat template; send prompt, the text to continue")


def _read_prompt(value: Node) -> str:
    if not isinstance(value, str):
        raise InvalidInput("prompt", f"expected a string, got {describe_value(value)}; send a conversation in messages")
    return value


class NativeStream:
    """The StreamWriter of one response. `request_id`: part of an error event."""

    def __init__(self, num_choices: int, request_id: str) -> None:
        self._num_unfinished = num_choices
        self._request_id = request_id
        # The last event is held back until the counts are known.
        self._last: dict[str, Any] | None = None

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        event: dict[str, Any] = {"text": piece.text, "index": piece.index}
        if piece.tokens:
            event["logprobs"] = _describe_tokens(piece.tokens)
        if piece.finish_reason is not None:
            event["finish_reason"] = piece.finish_reason
            self._num_unfinished -= 1
            if not self._num_unfinished:
                self._last = event
                return []
        return [orjson.dumps(event)]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        last = (self._last or {}) | _describe_usage(usage) | {"latency_ms": round(latency_ms, 3)}
        return [orjson.dumps(last), DONE]

    def error(self, error: ErrorReply) -> list[bytes]:
        content = {"code": error.code, "message": error.message, "request_id": self._request_id}
        event = orjson.dumps({"error": content})
        return [event] if self._last is None else [orjson.dumps(self._last), event]


def describe_generated(request: GenerateRequest, answer: GenerateAnswer) -> dict[str, Any]:
    """Return the fields of a whole response: of one text its own, of several a list of choices."""
    with_logprobs = request.sampling.top_logprobs is not None
    choices = [_describe_choice(choice, with_logprobs) for choice in answer.choices]
    if len(choices) == 1:
        return choices[0] | _describe_usage(answer.usage)
    return {"choices": [{"index": i} | choice for i, choice in enumerate(choices)]} | _describe_usage(answer.usage)


def _describe_choice(choice: Choice, with_logprobs: bool) -> dict[str, Any]:
    logprobs = {"logprobs": _describe_tokens(choice.tokens)} if with_logprobs else {}
    return {"text": choice.text, "finish_reason": choice.finish_reason} | logprobs


def _describe_usage(usage: Usage) -> dict[str, int]:
    counts = {"tokens_generated": usage.tokens_generated, "prompt_tokens": usage.prompt_tokens}
    if usage.accepted_tokens or usage.rejected_tokens:
        counts["accepted_prediction_tokens"] = usage.accepted_tokens
        counts["rejected_prediction_tokens"] = usage.rejected_tokens
    return counts


def _describe_tokens(tokens: Sequence[TokenText]) -> Any:
    """Return the log probabilities of tokens and of the most likely tokens at their positions; null: impossible."""
    return list_to_json(tokens, _describe_token)


def _describe_token(token: TokenText) -> dict[str, Any]:
    return {
        "token": token.text,
        "token_id": token.token_id,
        "logprob": token.logprob,
        "top": [{"token": text, "token_id": token_id, "logprob": logprob} for token_id, text, logprob in token.top],
    }
