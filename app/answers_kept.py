"""The short cut: a question that was answered is not asked again, and one that is being answered not asked twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

import numpy as np

from frameworks.types import Answer, Array, ClassifyAnswer, EmbedAnswer, TensorBatch, TextRequest, Value
from memory.result_cache import ResultCache

Question = TensorBatch | TextRequest


class _Flight:
    """A question that is being answered. `landed` is made by the first who waits for it."""

    __slots__ = ("landed",)

    def __init__(self) -> None:
        self.landed: asyncio.Future[Answer | None] | None = None


class AnswersKept:
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
        neighbour's answer is waited for. A caller who asks for others
        too and goes away leaves the asking to the next of them. Raises what `ask` raises, to all of them.
        """
        key = _key_of(model, serving, question)
        if key is None:
            return await ask()
        while True:
            kept = self._cache.get(key)
            if kept is not None:
                self._hits[model] += 1
                return kept
            flight = self._flights.get(key)
            if flight is None:
                self._misses[model] += 1
                return await self._ask(key, model, ask)
            if flight.landed is None:
                flight.landed = asyncio.get_running_loop().create_future()
            joined()
            answer = await asyncio.shield(flight.landed)
            if answer is not None:
                self._hits[model] += 1
                return answer

    def drop(self, model: str) -> None:
        """Forgets what a model answered: it is another one now, or gone."""
        self._cache.drop(model)

    async def _ask(self, key: "tuple[Hashable, ...]", model: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        flight = self._flights[key] = _Flight()
        answer: Answer | None = None
        failure: Exception | None = None
        try:
            answer = _owning_its_memory(await ask())
        except Exception as error:
            failure = error
            raise
        finally:
            del self._flights[key]
            landed = flight.landed
            if landed is not None and not landed.done():
                if failure is not None:
                    landed.set_exception(failure)
                    landed.exception()  # all who waited may have gone
                else:
                    landed.set_result(answer)
        self._cache.put(key, answer, model, _bytes_of_key(key) + _bytes_of(answer))
        return answer


def _key_of(model: str, serving: Hashable, question: Question) -> tuple[Hashable, ...] | None:
    """All that the answer depends on, every byte of it; None for what is not worth a key (lists, maps)."""
    if isinstance(question, TextRequest):
        return (model, serving, tuple(question.texts), question.normalize, question.truncate, question.top_k)
    key: list[Hashable] = [model, serving, question.output_names]
    for name, value in question.inputs.items():
        if not isinstance(value, np.ndarray):
            return None
        content = tuple(value.reshape(-1).tolist()) if value.dtype.kind == "O" else value.tobytes()
        key += (name, value.dtype.char, value.shape, content)
    return tuple(key)


def _bytes_of_key(key: tuple[Hashable, ...]) -> int:
    size = 0
    for part in key:
        if isinstance(part, bytes | str):
            size += len(part)
        elif isinstance(part, tuple):
            size += sum(8 + (4 * len(each) if isinstance(each, str) else 0) for each in part)
    return size


def _bytes_of(answer: "Answer | Value") -> int:
    """What an answer holds, its objects counted roughly."""
    if isinstance(answer, np.ndarray):
        strings = sum(map(len, answer.reshape(-1).tolist())) if answer.dtype.kind == "O" else 0
        return int(answer.nbytes) + strings
    if isinstance(answer, EmbedAnswer):
        return int(answer.embeddings.nbytes)
    if isinstance(answer, ClassifyAnswer):
        return sum(64 * len(labels) for labels in answer.predictions)
    if isinstance(answer, dict):
        return sum(64 + _bytes_of(value) for value in answer.values())
    if isinstance(answer, list):
        return sum(64 + _bytes_of(value) for value in answer)
    return 64


def _owning_its_memory(answer: Answer) -> Answer:
    """A tensor may be a view on the rows of a whole batch, which would be kept along with it."""
    if isinstance(answer, EmbedAnswer):
        return EmbedAnswer(_owned(answer.embeddings), answer.tokens)
    if isinstance(answer, dict):
        return {name: _owned(value) if isinstance(value, np.ndarray) else value for name, value in answer.items()}
    return answer


def _owned(array: Array) -> Array:
    return array if array.base is None else array.copy()
