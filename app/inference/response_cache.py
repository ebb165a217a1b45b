"""The short cut: a question that was answered is not asked again, and one that is being answered not asked twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

import numpy as np

from frameworks.types import (
    Answer,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    PairRequest,
    ScoreAnswer,
    TensorBatch,
    TextRequest,
    Value,
)
from memory.result_cache import ResultCache

Question = TensorBatch | TextRequest | PairRequest
# What an object of Python's takes beside its content, and its place in a list or tuple.
_OBJECT_BYTES = 64
_CHARACTER_BYTES = 4  # of a text with characters beyond the first 65,536; most take less


class _Flight:
    """A question that is being answered. `landed` is made by the first who waits for it."""

    __slots__ = ("landed",)

    def __init__(self) -> None:
        self.landed: asyncio.Future[Answer | None] | None = None

    def land(self, outcome: Answer | BaseException) -> None:
        """Tells those who wait: the answer, the error, or that the next of them has to ask, as who asked is gone."""
        if self.landed is None:
            return
        if isinstance(outcome, Exception):
            self.landed.set_exception(outcome)
            self.landed.exception()  # all who waited may have gone
        elif isinstance(outcome, BaseException):
            self.landed.set_result(None)
        else:
            self.landed.set_result(outcome)


class ResponseCache:
    """Owned by the event loop."""

    def __init__(self, cache: ResultCache[Answer], hits: Counter[str], misses: Counter[str]) -> None:
        """`hits`, `misses`: by model, added up there; who waits for another's answer is a hit."""
        self._cache = cache
        self._flights: dict[Hashable, _Flight] = {}
        self._hits = hits
        self._misses = misses

    @property
    def size_bytes(self) -> int:
        return self._cache.size_bytes

    @property
    def evictions(self) -> int:
        return self._cache.evictions

    async def answer(
        self,
        model: str,
        serving: Hashable,
        question: Question,
        ask: Callable[[], Awaitable[Answer]],
        joined: Callable[[], None],
    ) -> Answer:
        """The answer of `ask`, or the same one from before or from a neighbour who asks it now.

        `serving`: what besides name and question the answer depends on: version and load. `joined` is called before a
        neighbour's answer is waited for. A caller who asks for others too and goes away leaves the asking to the next
        of them. Raises what `ask` raises, to all of them.
        """
        key, key_bytes = _key_of(model, serving, question)
        if key is None:
            return await ask()
        while True:
            kept = self._cache.get(key)
            if kept is not None:
                self._hits[model] += 1
                return kept
            flight = self._flights.get(key)
            if flight is None:
                break
            if flight.landed is None:
                flight.landed = asyncio.get_running_loop().create_future()
            joined()
            answer = await asyncio.shield(flight.landed)
            if answer is not None:
                self._hits[model] += 1
                return answer

        self._misses[model] += 1
        flight = self._flights[key] = _Flight()
        try:
            answer = _owning_its_memory(await ask())
        except BaseException as error:
            del self._flights[key]
            flight.land(error)
            raise
        del self._flights[key]
        if flight.landed is not None:
            flight.land(answer)
        self._cache.put(key, answer, model, key_bytes + _bytes_of(answer))
        return answer

    def drop(self, model: str) -> None:
        """Forgets what a model answered: it is another one now, or gone."""
        self._cache.drop(model)


def _key_of(model: str, serving: Hashable, question: Question) -> tuple[tuple[Hashable, ...] | None, int]:
    """All that the answer depends on, every byte of it, and the bytes that this takes; None for what is not worth a key
    (lists, maps).
    """
    if isinstance(question, TextRequest):
        texts = tuple(question.texts)
        size_bytes = _CHARACTER_BYTES * sum(map(len, texts)) + _OBJECT_BYTES * len(texts)
        options = question.normalize, question.truncate, question.top_k, question.dimensions
        return (model, serving, texts, *options), size_bytes
    if isinstance(question, PairRequest):
        size_bytes = sum(
            _CHARACTER_BYTES * (len(one) + len(other)) + 3 * _OBJECT_BYTES for one, other in question.pairs
        )
        return (model, serving, tuple(question.pairs), question.truncate), size_bytes
    key: list[Hashable] = [model, serving, question.output_names]
    size_bytes = 0
    for name, value in question.inputs.items():
        if not isinstance(value, np.ndarray):
            return None, 0
        size_bytes += _OBJECT_BYTES + value.nbytes
        content: Hashable = value.tobytes()
        if value.dtype.kind == "O":
            content = strings = tuple(value.reshape(-1).tolist())
            size_bytes += _CHARACTER_BYTES * sum(map(len, strings)) + _OBJECT_BYTES * len(strings)
        key += (name, value.dtype.char, value.shape, content)
    return tuple(key), size_bytes


def _bytes_of(answer: "Answer | Value") -> int:
    """What an answer holds, its objects counted roughly."""
    if isinstance(answer, np.ndarray):
        strings = sum(map(len, answer.reshape(-1).tolist())) if answer.dtype.kind == "O" else 0
        return answer.nbytes + strings
    if isinstance(answer, dict):
        size = 0
        for value in answer.values():
            size += _OBJECT_BYTES + _bytes_of(value)
        return size
    if isinstance(answer, EmbedAnswer):
        return int(answer.embeddings.nbytes)
    if isinstance(answer, ClassifyAnswer):
        return sum(_OBJECT_BYTES * len(labels) for labels in answer.predictions)
    if isinstance(answer, ScoreAnswer):
        return _OBJECT_BYTES * len(answer.scores)
    if isinstance(answer, list):
        return sum(_OBJECT_BYTES + _bytes_of(value) for value in answer)
    return _OBJECT_BYTES


def _owning_its_memory(answer: Answer) -> Answer:
    """A tensor may be a view on the rows of a whole batch, which would be kept along with it."""
    if isinstance(answer, dict):
        for value in answer.values():
            if isinstance(value, np.ndarray) and value.base is not None:
                return {name: _owned(each) if isinstance(each, np.ndarray) else each for name, each in answer.items()}
    elif isinstance(answer, EmbedAnswer):
        return EmbedAnswer(_owned(answer.embeddings), answer.tokens)
    return answer


def _owned(array: Array) -> Array:
    return array if array.base is None else array.copy()
