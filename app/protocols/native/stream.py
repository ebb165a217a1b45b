"""Write generated text in the native format: whole, or as events with the counts in the last one."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.json.output import list_to_json
from frameworks.generation.types import Choice, GenerateAnswer, GenerateRequest, TextDelta, TokenText, Usage

DONE = b"[DONE]"


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
