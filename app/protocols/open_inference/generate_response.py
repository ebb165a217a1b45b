"""What is answered to Triton's generate extension: one text, or an event for each piece of it.

Beside what the extension names, an answer, and of a stream the last event, has what vLLM's backend calls
`finish_reason`, `num_input_tokens` and `num_output_tokens`. Of several texts a field is a list, with a place for each.
"""

from typing import Any

import orjson

from app.protocols.codec import AnswerContext
from app.protocols.open_inference.errors import error_body
from app.protocols.open_inference.generate_request import WantedText
from frameworks.generation.types import Choice, FinishReason, GenerateAnswer, Piece, TokenText, Usage


def describe(wanted: WantedText, question_id: str, answer: GenerateAnswer, context: AnswerContext) -> dict[str, Any]:
    """The answer in one piece."""
    choices = answer.choices
    before = str(wanted.request.prompts[0]) if wanted.with_input else ""
    return {
        **_head(question_id, context),
        "text_output": _each([before + choice.text for choice in choices]),
        "finish_reason": _each([choice.finish_reason for choice in choices]),
        **_counts(answer.usage),
        **_logprobs(wanted, [choice.tokens for choice in choices], [_sum(choice.tokens) for choice in choices]),
    }


class Pieces:
    """As StreamWriter of app/protocols/codec.py: an event for each piece. `done` is the Open Inference Protocol's."""

    def __init__(self, wanted: WantedText, question_id: str, context: AnswerContext) -> None:
        self._wanted = wanted
        self._head = _head(question_id, context)
        self._num_choices = self._num_unfinished = wanted.request.num_choices
        # Of the log probabilities of each choice's tokens so far.
        self._sums = [0.0] * self._num_choices
        # The end of the last choice waits for the counts, which come right behind it.
        self._last: dict[str, Any] = {}

    def begin(self) -> list[bytes]:
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        texts = [""] * self._num_choices
        tokens: list[tuple[TokenText, ...]] = [()] * self._num_choices
        reasons: list[FinishReason | None] = [None] * self._num_choices
        texts[piece.index], tokens[piece.index], reasons[piece.index] = piece.text, piece.tokens, piece.finish_reason
        self._sums[piece.index] += _sum(piece.tokens)
        event = {
            **self._head,
            "text_output": _each(texts),
            "finish_reason": _each(reasons),
            "done": False,
            **_logprobs(self._wanted, tokens, self._sums),
        }
        if piece.finish_reason is not None:
            self._num_unfinished -= 1
            if not self._num_unfinished:
                self._last = event
                return []
        return [orjson.dumps(event)]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        return [orjson.dumps({**self._last, **_counts(usage), "done": True})]

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        told = error_body(status, code, message, "")
        return [orjson.dumps(self._last), told] if self._last else [told]


class WholeInOnePiece:
    """As StreamWriter of app/protocols/codec.py: one event, with the whole text in it."""

    def __init__(self, wanted: WantedText, question_id: str, context: AnswerContext) -> None:
        self._wanted = wanted
        self._question_id = question_id
        self._context = context
        self._pieces: list[Piece] = []

    def begin(self) -> list[bytes]:
        return []

    def piece(self, piece: Piece) -> list[bytes]:
        self._pieces.append(piece)
        return []

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        answer = GenerateAnswer([self._choice(i) for i in range(self._wanted.request.num_choices)], usage)
        return [orjson.dumps({**describe(self._wanted, self._question_id, answer, self._context), "done": True})]

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        return [error_body(status, code, message, "")]

    def _choice(self, index: int) -> Choice:
        own = [piece for piece in self._pieces if piece.index == index]
        reason = own[-1].finish_reason
        assert reason is not None
        return Choice("".join(piece.text for piece in own), reason, tuple(t for piece in own for t in piece.tokens))


def _head(question_id: str, context: AnswerContext) -> dict[str, str]:
    named = {"id": question_id} if question_id else {}
    return {**named, "model_name": context.model, "model_version": context.version}


def _counts(usage: Usage) -> dict[str, int]:
    return {"num_input_tokens": usage.prompt_tokens, "num_output_tokens": usage.tokens_generated}


def _logprobs(wanted: WantedText, tokens: list[tuple[TokenText, ...]], sums: list[float]) -> dict[str, Any]:
    """Those that are wanted; what cannot be at all has null. `sums`: of each choice, up to here."""
    told: dict[str, Any] = {}
    if wanted.log_probs:
        told["output_log_probs"] = _each([[token.logprob for token in of_choice] for of_choice in tokens])
        told["cum_log_probs"] = _each(sums)
    if wanted.cumulative_logprob:
        told["cumulative_logprob"] = _each(sums)
    if wanted.logprobs:
        # vLLM's backend gives the JSON as a string.
        told["logprobs"] = _each([orjson.dumps([_likeliest(t) for t in of_choice]).decode() for of_choice in tokens])
    return told


def _likeliest(token: TokenText) -> dict[str, dict[str, Any]]:
    """By token id; the chosen one is always among them, and has no rank where it is not among the likeliest."""
    found = {
        str(token_id): {"logprob": logprob, "rank": place, "decoded_token": text}
        for place, (token_id, text, logprob) in enumerate(token.top, 1)
    }
    found.setdefault(str(token.token_id), {"logprob": token.logprob, "rank": None, "decoded_token": token.text})
    return found


def _sum(tokens: tuple[TokenText, ...]) -> float:
    return sum(token.logprob or 0.0 for token in tokens)


def _each(values: list[Any]) -> Any:
    """As Triton writes an output: a list, or the value itself where there is one."""
    return values[0] if len(values) == 1 else values
