"""/v1/completions: continue prompts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.chat_turns import generation_of
from app.protocols.codec import AnswerContext
from app.protocols.errors import ErrorReply
from app.protocols.generation_fields import check_token_ids, to_sampling, to_stopping
from app.protocols.json_output import list_to_json
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest, error_body
from app.protocols.openai.field_policy import COMPLETIONS
from app.protocols.openai.generation import (
    check_stream_options,
    constraint_of,
    finite,
    num_choices_of,
    sends_usage,
    usage_of,
)
from app.protocols.openai.requests import CompletionsRequest
from frameworks.engine.generation import MAX_SEQUENCES
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest, Piece, Prompt, TokenText, Usage
from frameworks.types import ModelSpec

_DEFAULT_MAX_TOKENS = 16


def _build(body: CompletionsRequest, spec: ModelSpec) -> GenerateRequest:
    check_stream_options(body)
    generation = generation_of(spec)
    prompts = _prompts_of(body, generation.vocabulary_size)
    num_choices = num_choices_of(body, len(prompts))
    return GenerateRequest(
        prompts,
        to_sampling(body, generation, body.logprobs),
        to_stopping(body, generation, _DEFAULT_MAX_TOKENS),
        constraint_of(body),
        num_choices,
    )


def _check_length(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Raise InvalidInput for lists of token ids beyond the context, before each id is validated."""
    prompt, context = fields.get("prompt"), generation_of(spec).max_context_tokens
    if not isinstance(prompt, list) or not prompt:
        return
    is_one = type(prompt[0]) is int
    for index, token_ids in enumerate([prompt] if is_one else prompt[:MAX_SEQUENCES]):
        if isinstance(token_ids, list) and len(token_ids) >= context:
            raise InvalidInput(
                "prompt" if is_one or len(prompt) == 1 else f"prompt[{index}]",
                f"expected fewer than {context} tokens, the model's context for prompt and text, got {len(token_ids)}; "
                "shorten it",
            )


def _prompts_of(body: CompletionsRequest, vocabulary_size: int) -> tuple[Prompt, ...]:
    """Return each text, or each list of token ids. Raises InvalidInput for a token outside the vocabulary."""
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        check_token_ids(prompt, "prompt", vocabulary_size)
        return (tuple(prompt),)
    if isinstance(prompt[0], str):
        return tuple(prompt)
    for index, token_ids in enumerate(prompt):
        check_token_ids(token_ids, f"prompt[{index}]", vocabulary_size)
    return tuple(map(tuple, prompt))


def _write(decoded: OpenAiRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    choices = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": _logprobs(decoded, choice.tokens, 0),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    return orjson.dumps({**_head(context), "choices": choices, "usage": usage_of(answer.usage)})


class _Stream:
    """As StreamWriter of app/protocols/codec.py: one event for each piece of a text."""

    def __init__(self, decoded: OpenAiRequest, context: AnswerContext) -> None:
        self._decoded = decoded
        self._head = _head(context)
        self._include_usage = sends_usage(decoded.body)
        # Number of characters in the tokens of each choice so far.
        self._offsets: Counter[int] = Counter()

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        choice = {
            "index": piece.index,
            "text": piece.text,
            "logprobs": _logprobs(self._decoded, piece.tokens, self._offsets[piece.index]),
            "finish_reason": piece.finish_reason,
        }
        self._offsets[piece.index] += sum(len(token.text) for token in piece.tokens)
        return [self._chunk([choice])]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        last = [self._chunk([], usage_of(usage))] if self._include_usage else []
        return [*last, b"[DONE]"]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [error_body(error)]

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


def _logprobs(decoded: OpenAiRequest, tokens: Sequence[TokenText], offset: int) -> dict[str, Any] | None:
    """`offset`: number of characters before the first token."""
    if decoded.request.sampling.top_logprobs is None:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": list_to_json(tokens, lambda token: token.text),
        "token_logprobs": list_to_json(tokens, lambda token: finite(token.logprob)),
        "top_logprobs": list_to_json(tokens, _top_logprobs),
        "text_offset": offsets,
    }


def _top_logprobs(token: TokenText) -> dict[str, float]:
    """Return log probabilities by text, always with the chosen token. Of equal texts the most likely token counts."""
    by_text: dict[str, float] = {}
    for _, text, logprob in (*token.top, (token.token_id, token.text, token.logprob)):
        by_text.setdefault(text, finite(logprob))
    return by_text


COMPLETIONS_CODEC = OpenAiCodec(
    "/v1/completions", ("generate",), CompletionsRequest, _build, _write, COMPLETIONS, _Stream, check=_check_length
)
