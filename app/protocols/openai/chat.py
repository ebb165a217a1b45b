"""/v1/chat/completions: the next message of a conversation."""

from typing import Any

import orjson

from app.protocols.codec import AnswerContext
from app.protocols.generation_fields import read_flag, read_whole
from app.protocols.openai.codec import Asked, Fields, OpenAiCodec, Question
from app.protocols.openai.errors import error_body
from app.protocols.openai.field_policy import CHAT
from app.protocols.openai.generation import generation_of, read_generation, read_stream, usage_of, written
from app.protocols.openai.prompts import check_has_template, read_chat
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, Piece, TokenText, Usage
from frameworks.types import ModelSpec

_MOST_TOP_LOGPROBS = 20
# What stands for bytes that are no whole character.
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def _read(fields: Fields, spec: ModelSpec) -> Asked:
    generation = generation_of(spec)
    check_has_template(generation, fields)
    conversation = read_chat(fields.get("messages"))
    stream, include_usage = read_stream(fields)
    request = read_generation(
        fields, generation, (conversation,), _read_top_logprobs(fields), None, _max_tokens_field(fields)
    )
    return Asked(request, stream, include_usage)


def _max_tokens_field(fields: Fields) -> str:
    """Which of its two names the bound has."""
    if "max_completion_tokens" not in fields:
        return "max_tokens"
    if fields.get("max_tokens", fields["max_completion_tokens"]) != fields["max_completion_tokens"]:
        raise InvalidInput("max_tokens", "does not go with max_completion_tokens, its newer name; send one of them")
    return "max_completion_tokens"


def _read_top_logprobs(fields: Fields) -> int | None:
    top = read_whole(fields, "top_logprobs", 0, _MOST_TOP_LOGPROBS)
    if read_flag(fields, "logprobs"):
        return top or 0
    if top is not None:
        raise InvalidInput("top_logprobs", 'goes with "logprobs": true; leave it out or ask for them')
    return None


def _write(question: Question, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(question, choice.tokens),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    return orjson.dumps({**_head(context, "chat.completion"), "choices": choices, "usage": usage_of(answer.usage)})


class _Stream:
    """As StreamWriter of app/protocols/codec.py: of each choice its role, its text bit by bit, and why it ended."""

    def __init__(self, question: Question, context: AnswerContext) -> None:
        self._question = question
        self._head = _head(context, "chat.completion.chunk")
        self._include_usage = bool(question.form)

    def begin(self) -> list[bytes]:
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, role) for index in range(self._question.request.num_choices)]

    def piece(self, piece: Piece) -> list[bytes]:
        chunks = []
        if piece.text or piece.tokens:
            logprobs = _logprobs(self._question, piece.tokens)
            chunks.append(self._chunk(piece.index, {"content": piece.text}, logprobs))
        if piece.finish_reason is not None:
            chunks.append(self._chunk(piece.index, {}, finish_reason=piece.finish_reason))
        return chunks

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        if not self._include_usage:
            return [b"[DONE]"]
        return [orjson.dumps({**self._head, "choices": [], "usage": usage_of(usage)}), b"[DONE]"]

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        return [error_body(status, code, message)]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        more = {"usage": None} if self._include_usage else {}
        return orjson.dumps({**self._head, "choices": [choice], **more})


def _head(context: AnswerContext, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{context.request_id}",
        "object": kind,
        "created": context.created_s,
        "model": context.model,
    }


def _logprobs(question: Question, tokens: tuple[TokenText, ...]) -> dict[str, Any] | None:
    if question.request.sampling.top_logprobs is None:
        return None
    content = [
        {
            **_token(token.text, token.logprob),
            "top_logprobs": [_token(text, logprob) for _, text, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    """`bytes` null: the token alone is no text."""
    utf8 = None if _NO_CHARACTER in text else list(text.encode())
    return {"token": text, "logprob": written(logprob), "bytes": utf8}


CHAT_FORMAT = OpenAiCodec("/v1/chat/completions", ("generate",), CHAT, _read, _write, _Stream)
