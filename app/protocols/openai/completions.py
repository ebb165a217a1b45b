"""/v1/completions: prompts are continued."""

from collections import Counter
from typing import Any

import orjson

from app.protocols.codec import AnswerContext
from app.protocols.generation_fields import read_whole
from app.protocols.openai.codec import Asked, Fields, OpenAiCodec, Question
from app.protocols.openai.errors import error_body
from app.protocols.openai.field_policy import COMPLETIONS
from app.protocols.openai.generation import generation_of, read_generation, read_stream, usage_of, written
from app.protocols.openai.prompts import read_prompts
from frameworks.generation.types import GenerateAnswer, Piece, TokenText, Usage
from frameworks.types import ModelSpec

_DEFAULT_MAX_TOKENS = 16
_MOST_LOGPROBS = 5


def _read(fields: Fields, spec: ModelSpec) -> Asked:
    generation = generation_of(spec)
    stream, include_usage = read_stream(fields)
    request = read_generation(
        fields,
        generation,
        read_prompts(fields.get("prompt"), generation.vocabulary_size),
        read_whole(fields, "logprobs", 0, _MOST_LOGPROBS),
        _DEFAULT_MAX_TOKENS,
    )
    return Asked(request, stream, include_usage)


def _write(question: Question, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    choices = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": _logprobs(question, choice.tokens, 0),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    return orjson.dumps({**_head(context), "choices": choices, "usage": usage_of(answer.usage)})


class _Stream:
    """As StreamWriter of app/protocols/codec.py."""

    def __init__(self, question: Question, context: AnswerContext) -> None:
        self._question = question
        self._head = _head(context)
        self._include_usage = bool(question.form)
        # Characters of each choice that its tokens have had so far.
        self._offsets: Counter[int] = Counter()

    def begin(self) -> list[bytes]:
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        choice = {
            "index": piece.index,
            "text": piece.text,
            "logprobs": _logprobs(self._question, piece.tokens, self._offsets[piece.index]),
            "finish_reason": piece.finish_reason,
        }
        self._offsets[piece.index] += sum(len(token.text) for token in piece.tokens)
        return [self._chunk([choice])]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        last = [self._chunk([], usage_of(usage))] if self._include_usage else []
        return [*last, b"[DONE]"]

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        return [error_body(status, code, message)]

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        more = {"usage": usage} if self._include_usage else {}
        return orjson.dumps({**self._head, "choices": choices, **more})


def _head(context: AnswerContext) -> dict[str, Any]:
    return {
        "id": f"cmpl-{context.request_id}",
        "object": "text_completion",
        "created": context.created_s,
        "model": context.model,
    }


def _logprobs(question: Question, tokens: tuple[TokenText, ...], offset: int) -> dict[str, Any] | None:
    """`offset`: characters before the first of the tokens."""
    if question.request.sampling.top_logprobs is None:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [written(token.logprob) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": offsets,
    }


def _likeliest(token: TokenText) -> dict[str, float]:
    """By text; of several tokens with one text the likeliest. The one that was chosen is always among them."""
    by_text: dict[str, float] = {}
    for _, text, logprob in (*token.top, (token.token_id, token.text, token.logprob)):
        by_text.setdefault(text, written(logprob))
    return by_text


COMPLETIONS_FORMAT = OpenAiCodec("/v1/completions", ("generate",), COMPLETIONS, _read, _write, _Stream)
