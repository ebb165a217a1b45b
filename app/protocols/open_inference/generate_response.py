"""Write responses of Triton's generate extension: one text, or an event for each part of a streamed text.

Besides the extension's fields, a response and the last event have vLLM's `finish_reason`, `num_input_tokens` and
`num_output_tokens`. With several texts, these fields are lists with an element for each text.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import Field

from app.protocols.open_inference.errors import error_body
from app.protocols.open_inference.generate_request import ParsedGenerate
from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.json.output import list_to_json, list_to_json_string
from frameworks.generation.types import Choice, FinishReason, GenerateAnswer, TextDelta, TokenText, Usage


class GenerateTextResponse(ResponseBody):
    """A whole response, or an event of a stream with the new text; the last event has the counts."""

    id: str | None = None
    model_name: str
    model_version: str
    text_output: str | list[str]
    finish_reason: str | list[str | None] | None = Field(None, description="stop or length.")
    num_input_tokens: int | None = None
    num_output_tokens: int | None = Field(None, description="Of all texts, with their end tokens.")
    done: bool | None = Field(None, description="In a stream: whether this is the last event.")
    output_log_probs: list[Any] | None = None
    cum_log_probs: float | list[float] | None = None
    cumulative_logprob: float | list[float] | None = None
    logprobs: str | list[str] | None = None


def describe_response(parsed: ParsedGenerate, answer: GenerateAnswer, context: AnswerContext) -> dict[str, Any]:
    """Return the whole response."""
    choices = answer.choices
    prefix = str(parsed.request.prompts[0]) if parsed.include_input else ""
    return {
        **_head(parsed.id, context),
        "text_output": _each([prefix + choice.text for choice in choices]),
        "finish_reason": _each([choice.finish_reason for choice in choices]),
        **_counts(answer.usage),
        **_logprobs(parsed, [choice.tokens for choice in choices], [sum_logprobs(choice.tokens) for choice in choices]),
    }


class StreamedText:
    """The StreamWriter of app/protocols/shared/codec.py with an event for each part of the text."""

    def __init__(self, parsed: ParsedGenerate, context: AnswerContext) -> None:
        self._parsed = parsed
        self._head = _head(parsed.id, context)
        self._num_choices = self._num_unfinished = parsed.request.num_choices
        # The sum of the log probabilities of each choice's tokens.
        self._sums = [0.0] * self._num_choices
        # The last event is held back until the counts are known.
        self._last: dict[str, Any] = {}

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        texts = [""] * self._num_choices
        tokens: list[Sequence[TokenText]] = [()] * self._num_choices
        reasons: list[FinishReason | None] = [None] * self._num_choices
        texts[piece.index], tokens[piece.index], reasons[piece.index] = piece.text, piece.tokens, piece.finish_reason
        self._sums[piece.index] += sum_logprobs(piece.tokens)
        event = {
            **self._head,
            "text_output": _each(texts),
            "finish_reason": _each(reasons),
            "done": False,
            **_logprobs(self._parsed, tokens, self._sums),
        }
        if piece.finish_reason is not None:
            self._num_unfinished -= 1
            if not self._num_unfinished:
                self._last = event
                return []
        return [orjson.dumps(event)]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        return [orjson.dumps({**self._last, **_counts(usage), "done": True})]

    def error(self, error: ErrorReply) -> list[bytes]:
        event = error_body(error)
        return [orjson.dumps(self._last), event] if self._last else [event]


class WholeTextEvent:
    """The StreamWriter of app/protocols/shared/codec.py with one event that has the whole text."""

    def __init__(self, parsed: ParsedGenerate, context: AnswerContext) -> None:
        self._parsed = parsed
        self._context = context
        self._pieces: list[list[TextDelta]] = [[] for _ in range(parsed.request.num_choices)]

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        self._pieces[piece.index].append(piece)
        return []

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        answer = GenerateAnswer([self._choice(i) for i in range(self._parsed.request.num_choices)], usage)
        return [orjson.dumps({**describe_response(self._parsed, answer, self._context), "done": True})]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [error_body(error)]

    def _choice(self, index: int) -> Choice:
        pieces = self._pieces[index]
        reason = pieces[-1].finish_reason
        assert reason is not None
        tokens = [token for piece in pieces for token in piece.tokens]
        return Choice("".join(piece.text for piece in pieces), reason, tokens)


def _head(request_id: str, context: AnswerContext) -> dict[str, str]:
    named = {"id": request_id} if request_id else {}
    return {**named, "model_name": context.model, "model_version": context.version}


def _counts(usage: Usage) -> dict[str, int]:
    return {"num_input_tokens": usage.prompt_tokens, "num_output_tokens": usage.tokens_generated}


def _logprobs(parsed: ParsedGenerate, tokens: Sequence[Sequence[TokenText]], sums: list[float]) -> dict[str, Any]:
    """Return the requested log probabilities; null for an impossible token. `sums`: of each choice, up to here."""
    fields: dict[str, Any] = {}
    if parsed.log_probs:
        fields["output_log_probs"] = _each([list_to_json(of_choice, lambda t: t.logprob) for of_choice in tokens])
        fields["cum_log_probs"] = _each(sums)
    if parsed.cumulative_logprob:
        fields["cumulative_logprob"] = _each(sums)
    if parsed.logprobs:
        # vLLM's backend returns the JSON in a string.
        fields["logprobs"] = _each([list_to_json_string(of_choice, top_tokens) for of_choice in tokens])
    return fields


def top_tokens(token: TokenText) -> dict[str, dict[str, Any]]:
    """Return the most likely tokens and the chosen one by token id; a chosen one beyond them has no rank."""
    found = {
        str(token_id): {"logprob": logprob, "rank": place, "decoded_token": text}
        for place, (token_id, text, logprob) in enumerate(token.top, 1)
    }
    found.setdefault(str(token.token_id), {"logprob": token.logprob, "rank": None, "decoded_token": token.text})
    return found


def sum_logprobs(tokens: Sequence[TokenText]) -> float:
    """Return the log probability of all tokens together."""
    return sum(token.logprob or 0.0 for token in tokens)


def _each(values: list[Any]) -> Any:
    """Return a list, or its only value, as Triton writes an output."""
    return values[0] if len(values) == 1 else values
