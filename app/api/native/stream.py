"""A streamed answer in the native format: a piece an event, the counts with the last one."""

from typing import Any

import orjson

from frameworks.generation.types import Piece, TokenText, Usage

DONE = b"[DONE]"


class NativeStream:
    """The StreamWriter of one answer. `request_id` goes with an error."""

    def __init__(self, num_choices: int, request_id: str) -> None:
        self._num_unfinished = num_choices
        self._request_id = request_id
        # The end of the last choice waits for the counts, which come right behind it.
        self._last: dict[str, Any] | None = None

    def begin(self) -> list[bytes]:
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        event: dict[str, Any] = {"text": piece.text, "index": piece.index}
        if piece.tokens:
            event["logprobs"] = describe_tokens(piece.tokens)
        if piece.finish_reason is not None:
            event["finish_reason"] = piece.finish_reason
            self._num_unfinished -= 1
            if not self._num_unfinished:
                self._last = event
                return []
        return [orjson.dumps(event)]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        return [orjson.dumps((self._last or {}) | describe_usage(usage, latency_ms)), DONE]

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        told = orjson.dumps({"error": {"code": code, "message": message, "request_id": self._request_id}})
        return [told] if self._last is None else [orjson.dumps(self._last), told]


def describe_usage(usage: Usage, latency_ms: float) -> dict[str, Any]:
    """The counts of an answer, as every answer to `prompt` and `messages` has them."""
    return {
        "tokens_generated": usage.tokens_generated,
        "prompt_tokens": usage.prompt_tokens,
        "latency_ms": round(latency_ms, 3),
    }


def describe_tokens(tokens: tuple[TokenText, ...]) -> list[dict[str, Any]]:
    """Their log probabilities, and those of the likeliest in their places. What cannot be at all has null."""
    return [
        {
            "token": token.text,
            "token_id": token.token_id,
            "logprob": token.logprob,
            "top": [{"token": text, "token_id": token_id, "logprob": logprob} for token_id, text, logprob in token.top],
        }
        for token in tokens
    ]
