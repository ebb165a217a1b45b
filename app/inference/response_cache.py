"""The response cache: an equal request of the same tenant is answered from memory, or waits for the first one's run."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from hashlib import sha256
from typing import Any, Protocol

import msgspec
import numpy as np

from frameworks.core.tenants import Tenant
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskAnswer, TaskRequest
from frameworks.types import (
    Answer,
    Array,
    ClassifyAnswer,
    CombinedAnswer,
    ConversationRequest,
    EmbedAnswer,
    ImagePairRequest,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    SparseAnswer,
    TensorBatch,
    TextRequest,
)
from memory.result_cache import ResultCache

CacheableRequest = (
    TensorBatch | TextRequest | ImageRequest | ConversationRequest | PairRequest | ImagePairRequest | TaskRequest
)
# The size of a Python object beside its content, and of its place in a list or tuple.
_OBJECT_BYTES = 64
_CHARACTER_BYTES = 4  # for texts with characters beyond U+FFFF; most take less


class Responses(Protocol):
    """Where the response to a request may be without a run: of this process, or of all workers."""

    def get_or_run(
        self,
        tenant: Tenant,
        model: str,
        serving_id: Hashable,
        request: CacheableRequest,
        run: Callable[[], Awaitable[Answer]],
        on_wait: Callable[[], None],
    ) -> Awaitable[Answer]:
        """Return the cached response, the response of an equal request that runs now, or the response of `run`.

        `serving_id`: changes with each load of the version. `on_wait` is called before the request waits for another
        one of this process. If a caller whose run others wait for is cancelled, the next of them runs it. Raises what
        `run` raises, to all of them.
        """
        ...


class CacheUse(Protocol):
    """The size of the cached responses, and the number of those that were evicted."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def evictions(self) -> int: ...


class PendingRun:
    """A request that is being run. `future` is made by the first other caller that waits for its response."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Answer | None] | None = None

    async def wait(self) -> Answer | None:
        """Return the response; None after a cancelled run. Raises the error of the run."""
        if self.future is None:
            self.future = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.future)

    def resolve(self, outcome: Answer | BaseException) -> None:
        """Give waiting callers the response or the error; None after a cancelled run: the next caller runs it."""
        if self.future is None:
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
            self.future.exception()  # all waiting callers may have been cancelled
        elif isinstance(outcome, BaseException):
            self.future.set_result(None)
        else:
            self.future.set_result(outcome)


class ResponseCache:
    """Cached responses, and the runs that several equal requests share. Owned by the event loop.

    Tenants share neither, unless both have `shares_caches`.
    """

    def __init__(
        self, cache: ResultCache[Answer], hits: Counter[tuple[str, str]], misses: Counter[tuple[str, str]]
    ) -> None:
        """`hits`, `misses`: by model and tenant, counted there. A request that waits for another's run is a hit."""
        self._cache = cache
        self._pending: dict[Hashable, PendingRun] = {}
        self._hits = hits
        self._misses = misses

    @property
    def size_bytes(self) -> int:
        return self._cache.size_bytes

    @property
    def evictions(self) -> int:
        return self._cache.evictions

    async def get_or_run(
        self,
        tenant: Tenant,
        model: str,
        serving_id: Hashable,
        request: CacheableRequest,
        run: Callable[[], Awaitable[Answer]],
        on_wait: Callable[[], None],
    ) -> Answer:
        """Implement Responses."""
        key, key_bytes = key_of((tenant.cache_scope, model, serving_id), request)
        if key is None:
            return await run()
        counted = model, tenant.name
        while True:
            cached = self._cache.get(key)
            if cached is not None:
                self._hits[counted] += 1
                return cached
            pending = self._pending.get(key)
            if pending is None:
                break
            on_wait()
            answer = await pending.wait()
            if answer is not None:
                self._hits[counted] += 1
                return answer

        self._misses[counted] += 1
        pending = self._pending[key] = PendingRun()
        try:
            answer = owning_its_memory(await run())
        except BaseException as error:
            del self._pending[key]
            pending.resolve(error)
            raise
        del self._pending[key]
        pending.resolve(answer)
        self._cache.put(key, answer, model, key_bytes + size_of(answer))
        return answer

    def drop(self, model: str) -> None:
        """Drop the responses of a model that was replaced or unloaded."""
        self._cache.drop(model)


def key_of(
    owner: tuple[Hashable, ...], request: CacheableRequest, content_of: Callable[[Array], bytes] = np.ndarray.tobytes
) -> tuple[tuple[Hashable, ...] | None, int]:
    """Return all that the response depends on, and its size; None for lists, maps and random answers.

    `owner`: the tenants that may share the response, the model and its load. `content_of`: returns the bytes of a
    tensor in C order, or a digest of them.
    """
    if isinstance(request, TextRequest):
        texts = tuple(request.texts)
        size_bytes = _CHARACTER_BYTES * sum(map(len, texts)) + _OBJECT_BYTES * len(texts)
        options = (
            request.normalize,
            request.truncate,
            request.top_k,
            request.dimensions,
            request.raw_scores,
            request.prompt,
            request.are_queries,
            request.vectors,
            request.min_value,
            request.kinds,
        )
        if request.token_ids is None:
            return (*owner, texts, *options), size_bytes
        token_ids = tuple(map(tuple, request.token_ids))
        size_bytes = _OBJECT_BYTES * (len(token_ids) + sum(map(len, token_ids)))
        return (*owner, token_ids, *options), size_bytes
    if isinstance(request, ImageRequest):
        # Files are long, and their digests as good.
        files = tuple([sha256(file).digest() for file in request.images])
        image_options = request.normalize, request.top_k, request.dimensions, request.raw_scores, request.output_names
        return (*owner, files, *image_options, request.vectors), 2 * _OBJECT_BYTES * len(files)
    if isinstance(request, ConversationRequest | ImagePairRequest):
        digest = sha256(msgspec.msgpack.encode(request)).digest()
        return (*owner, type(request).__name__, digest), 2 * _OBJECT_BYTES
    if isinstance(request, TaskRequest):
        return _key_of_task(owner, request)
    if isinstance(request, PairRequest):
        size_bytes = sum(_CHARACTER_BYTES * (len(one) + len(other)) + 3 * _OBJECT_BYTES for one, other in request.pairs)
        options_of_pairs = request.truncate, request.raw_scores, request.with_labels
        return (*owner, tuple(request.pairs), *options_of_pairs), size_bytes
    key: list[Hashable] = [*owner, request.output_names]
    size_bytes = 0
    for name, value in request.inputs.items():
        if not isinstance(value, np.ndarray):
            return None, 0
        size_bytes += _OBJECT_BYTES + value.nbytes
        content: Hashable
        if value.dtype.kind == "O":
            content = strings = tuple(value.reshape(-1).tolist())
            size_bytes += _CHARACTER_BYTES * sum(map(len, strings)) + _OBJECT_BYTES * len(strings)
        else:
            content = content_of(value)
        key += (name, value.dtype.char, value.shape, content)
    return tuple(key), size_bytes


def _key_of_task(owner: tuple[Hashable, ...], request: TaskRequest) -> tuple[tuple[Hashable, ...] | None, int]:
    if request.is_random:
        return None, 0
    asked = msgspec.msgpack.encode((request.inputs, sorted(request.parameters.items())))
    return (*owner, sha256(asked).digest()), 2 * _OBJECT_BYTES


def size_of(answer: Any) -> int:
    """Return the size of a response in bytes; objects are estimated."""
    if isinstance(answer, np.ndarray):
        strings = sum(map(len, answer.reshape(-1).tolist())) if answer.dtype.kind == "O" else 0
        return answer.nbytes + strings
    if isinstance(answer, dict):
        size = 0
        for value in answer.values():
            size += _OBJECT_BYTES + size_of(value)
        return size
    if isinstance(answer, EmbedAnswer):
        return int(answer.embeddings.nbytes)
    if isinstance(answer, ClassifyAnswer):
        return (1 + (answer.classes is not None)) * _OBJECT_BYTES * sum(map(len, answer.predictions))
    if isinstance(answer, ScoreAnswer):
        return _OBJECT_BYTES * len(answer.scores)
    if isinstance(answer, TaskAnswer | MultiVectorAnswer | SparseAnswer | CombinedAnswer):
        return size_of(_lists_of(answer))
    if isinstance(answer, str):
        return _OBJECT_BYTES + len(answer)
    if isinstance(answer, list):
        return sum(_OBJECT_BYTES + size_of(value) for value in answer)
    return _OBJECT_BYTES


def _lists_of(answer: TaskAnswer | MultiVectorAnswer | SparseAnswer | CombinedAnswer) -> list[Any]:
    if isinstance(answer, CombinedAnswer):
        return answer.answers
    if isinstance(answer, SparseAnswer):
        return answer.indices + answer.values
    return answer.predictions if isinstance(answer, TaskAnswer) else answer.vectors


def owning_its_memory(answer: Answer) -> Answer:
    """Copy tensors that are views: a view on the rows of a batch would keep the whole batch in memory."""
    if isinstance(answer, dict):
        for value in answer.values():
            if isinstance(value, np.ndarray) and value.base is not None:
                return {name: _owned(each) if isinstance(each, np.ndarray) else each for name, each in answer.items()}
    elif isinstance(answer, EmbedAnswer):
        return EmbedAnswer(_owned(answer.embeddings), answer.tokens)
    elif isinstance(answer, MultiVectorAnswer):
        return MultiVectorAnswer([_owned(vectors) for vectors in answer.vectors], answer.tokens)
    elif isinstance(answer, CombinedAnswer):
        kinds: Any = (each and owning_its_memory(each) for each in (answer.dense, answer.sparse, answer.multi))
        return CombinedAnswer(*kinds)
    return answer


def _owned(array: Array) -> Array:
    return array if array.base is None else array.copy()
