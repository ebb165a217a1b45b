"""/v1/completions: continue prompts."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest, error_body
from app.protocols.openai.field_policy import COMPLETIONS
from app.protocols.openai.generation import (
    StreamedUsage,
    check_prompt_logprobs,
    check_stream_options,
    constraint_of,
    finite,
    ignored_stream_options,
    num_choices_of,
    prompt_logprobs_of,
    text_of,
    token_name,
    usage_of,
)
from app.protocols.openai.requests import DEFAULT_COMPLETION_TOKENS, CompletionsRequest
from app.protocols.shared.chat_turns import check_infills, generation_of
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.generation import check_token_ids, to_sampling, to_stopping
from app.protocols.shared.json.output import list_to_json
from frameworks.core.errors import InvalidInput
from frameworks.engine.generation_limits import MAX_SEQUENCES
from frameworks.generation.prompt_scores import PromptOptions
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


def _build(body: CompletionsRequest, spec: ModelSpec) -> GenerateRequest:
    check_stream_options(body)
    check_prompt_logprobs(body)
    generation = generation_of(spec)
    prompts = _prompts_of(body, generation.vocabulary_size)
    num_choices = num_choices_of(body, len(prompts))
    return GenerateRequest(
        prompts,
        to_sampling(body, generation, body.logprobs),
        to_stopping(body, generation, DEFAULT_COMPLETION_TOKENS),
        constraint_of(body),
        num_choices,
        prompt_options=_options_of(body, prompts, generation),
    )


def _options_of(body: CompletionsRequest, prompts: Sequence[Prompt], generation: GenerationSpec) -> PromptOptions:
    """Return what the request asks of its prompts. Raises InvalidInput."""
    echoes = bool(body.echo)
    if body.suffix:
        _check_suffix(body, prompts, generation)
    asked = [top for top in (body.prompt_logprobs, body.logprobs if echoes else None) if top is not None]
    return PromptOptions(
        add_special_tokens=body.add_special_tokens is not False,
        suffix=body.suffix or None,
        is_echoed=echoes,
        top_logprobs=max(asked) if asked else None,
    )


def _check_suffix(body: CompletionsRequest, prompts: Sequence[Prompt], generation: GenerationSpec) -> None:
    check_infills(generation, body.model)
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidInput("prompt", "expected texts with a suffix, got token ids; put all tokens into the prompt")
    if body.echo:
        raise InvalidInput("echo", "expected false with a suffix, got true; put the prompt before the text")


def _check_length(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Raise InvalidInput for lists of token ids beyond the context, before each id is validated."""
    prompt, context = fields.get("prompt"), generation_of(spec).max_context_tokens
    if not isinstance(prompt, list) or not prompt:
        return
    is_one = type(prompt[0]) is int
    if fields.get("max_tokens") == 0:
        context += 1  # no token follows
    for index, token_ids in enumerate([prompt] if is_one else prompt[:MAX_SEQUENCES]):
        if isinstance(token_ids, list) and len(token_ids) >= context:
            raise InvalidInput(
                "prompt" if is_one or len(prompt) == 1 else f"prompt[{index}]",
                f"expected fewer than {context} tokens, by the model's context for prompt and text, got "
                f"{len(token_ids)}; shorten it",
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
            "text": choice.prompt + text_of(decoded.body, choice),
            "logprobs": _all_logprobs(decoded, choice),
            "finish_reason": choice.finish_reason,
            **_prompt_logprobs(decoded, choice),
        }
        for index, choice in enumerate(answer.choices)
    ]
    return orjson.dumps({**_head(context), "choices": choices, "usage": usage_of(answer.usage)})


class _CompletionStream:
    """As StreamWriter of app/protocols/shared/codec.py: one event for each piece of a text."""

    def __init__(self, decoded: OpenAiRequest, context: AnswerContext) -> None:
        self._decoded = decoded
        self._head = _head(context)
        self._usage = StreamedUsage(decoded.body, usage_of)
        # Number of characters in the tokens of each choice so far, and in those of its prompt.
        self._offsets: Counter[int] = Counter()
        self._prompt_offsets: Counter[int] = Counter()

    def begin(self, usage: Usage) -> list[bytes]:
        self._usage.begin(usage)
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        self._usage.count(piece)
        offsets = self._prompt_offsets if piece.is_prompt else self._offsets
        choice = {
            "index": piece.index,
            "text": text_of(self._decoded.body, piece),
            "logprobs": _logprobs(self._decoded, piece.tokens, _offsets(piece.tokens, offsets[piece.index])),
            "finish_reason": piece.finish_reason,
        }
        offsets[piece.index] += sum(map(_width, piece.tokens))
        if piece.is_prompt:
            # The text begins behind its prompt, whose tokens may have other widths.
            self._offsets[piece.index] += len(piece.text)
        return [orjson.dumps({**self._head, "choices": [choice], **self._usage.member()})]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        if not self._usage.is_last:
            return [b"[DONE]"]
        return [orjson.dumps({**self._head, "choices": [], **self._usage.last(usage)}), b"[DONE]"]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [error_body(error)]


def _head(context: AnswerContext) -> dict[str, Any]:
    return {
        "id": f"cmpl-{context.request_id}",
        "object": "text_completion",
        "created": context.created_s,
        "model": context.model,
    }


def _all_logprobs(decoded: OpenAiRequest, choice: Choice) -> dict[str, Any] | None:
    """Return the log probabilities of a choice; with echo, those of its prompt come first."""
    offsets = _offsets(choice.tokens, len(choice.prompt))
    if not decoded.body.echo:
        return _logprobs(decoded, choice.tokens, offsets)
    return _logprobs(decoded, [*choice.prompt_tokens, *choice.tokens], [*_offsets(choice.prompt_tokens, 0), *offsets])


def _offsets(tokens: Sequence[TokenText], start: int) -> list[int]:
    """Return the number of characters before each token."""
    return list(itertools.accumulate(map(_width, tokens), initial=start))[:-1]


def _logprobs(decoded: OpenAiRequest, tokens: Sequence[TokenText], offsets: list[int]) -> dict[str, Any] | None:
    body: CompletionsRequest = decoded.body
    num_top = body.logprobs
    if num_top is None:
        return None
    return {
        "tokens": list_to_json(tokens, lambda token: token_name(token.token_id, token.text, body)),
        "token_logprobs": list_to_json(tokens, lambda token: None if token.logprob is None else finite(token.logprob)),
        "top_logprobs": list_to_json(tokens, lambda token: _top_logprobs(token, num_top, body)),
        "text_offset": offsets,
    }


def _width(token: TokenText) -> int:
    """Return the number of characters of a token in the text."""
    return len(token.text) if token.has_text else 0


def _top_logprobs(token: TokenText, num_top: int, body: CompletionsRequest) -> dict[str, float] | None:
    """Return log probabilities by text, always with the chosen token. Of equal texts the most likely token counts.

    None for the first token of a prompt.
    """
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for token_id, text, logprob in (*token.top[:num_top], (token.token_id, token.text, token.logprob)):
        by_text.setdefault(token_name(token_id, text, body), finite(logprob))
    return by_text


def _prompt_logprobs(decoded: OpenAiRequest, choice: Choice) -> dict[str, Any]:
    body: CompletionsRequest = decoded.body
    if body.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": prompt_logprobs_of(body, choice.prompt_tokens)}


def _ignored(body: CompletionsRequest, spec: ModelSpec) -> tuple[str, ...]:
    return ignored_stream_options(body.stream_options)


COMPLETIONS_CODEC = OpenAiCodec(
    "/v1/completions", ("generate",), CompletionsRequest, _build, _write, COMPLETIONS, _CompletionStream,
    check=_check_length, ignored=_ignored,
)  # fmt: skip
