"""Find the cached responses of all workers, and share the runs of equal requests with the other workers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from hashlib import sha256
from typing import cast

import msgspec
import numpy as np

from app.auth.digests import LONG_BYTES
from app.inference.response_cache import CacheableRequest, PendingRun, key_of, owning_its_memory, size_of
from app.workers.messages import DropRun, FindResponse, FoundResponse, StoreResponse
from frameworks.core.channel.arrays import ArrayWriter, array_reader
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import RoundhouseError
from frameworks.core.tenants import Tenant
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import (
    answer_from_plain,
    answer_to_plain,
    error_from_plain,
    error_to_plain,
)
from frameworks.images.spec import ImageRequest
from frameworks.models.replicas.control import ControlLink
from frameworks.tasks.types import TaskRequest
from frameworks.types import Answer, Array, ConversationRequest, ImagePairRequest, TensorBatch, TextRequest

MAX_ANSWER_BYTES = 16 * 1024**2
"""Larger responses are neither cached nor sent to other workers."""

# Encoding or decoding more takes longer than 0.1 ms: it is done in a thread.
_LONG_ANSWER_BYTES = 64 * 1024

_write = ArrayWriter().write
_read = array_reader()


class WorkerResponses:
    """A worker's side: implements Responses. Owned by the event loop.

    Of equal requests of this worker one asks the supervisor, and the others wait for its outcome.
    """

    def __init__(self, link: ControlLink, hits: Counter[tuple[str, str]], misses: Counter[tuple[str, str]]) -> None:
        """`hits`, `misses`: as those of ResponseCache."""
        self._link = link
        self._pending: dict[bytes, PendingRun] = {}
        self._hits = hits
        self._misses = misses

    async def get_or_run(
        self,
        tenant: Tenant,
        model: str,
        serving_id: Hashable,
        request: CacheableRequest,
        run: Callable[[], Awaitable[Answer]],
        on_wait: Callable[[], None],
    ) -> Answer:
        """Implement Responses. Without the supervisor, the request is run."""
        digest = await _digest_of((tenant.cache_scope, model, serving_id), request)
        if digest is None:
            return await run()
        counted = model, tenant.name
        while (pending := self._pending.get(digest)) is not None:
            on_wait()
            answer = await pending.wait()
            if answer is not None:
                self._hits[counted] += 1
                return answer
        pending = self._pending[digest] = PendingRun()
        try:
            answer = await self._find_or_run(counted, digest, run)
        except BaseException as error:
            del self._pending[digest]
            pending.resolve(error)
            raise
        del self._pending[digest]
        pending.resolve(answer)
        return answer

    async def _find_or_run(
        self, counted: tuple[str, str], digest: bytes, run: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """`counted`: model and tenant."""
        found = await self._find(counted[0], digest)
        if found.answer is not None:
            self._hits[counted] += 1
            return await _decode(found.answer)
        if found.error is not None:
            raise error_from_plain(found.error)
        self._misses[counted] += 1
        if not found.is_shared:
            return owning_its_memory(await run())
        try:
            answer = owning_its_memory(await run())
        except BaseException as error:
            self._link.send(DropRun(found.id, _shared_error(error)))
            raise
        self._store(found.id, answer)
        return answer

    async def _find(self, model: str, digest: bytes) -> FoundResponse:
        number = 0

        def make(given: int) -> FindResponse:
            nonlocal number
            number = given
            return FindResponse(number, model, digest)

        try:
            return cast(FoundResponse, await self._link.ask(make))
        except ChannelLost:
            return FoundResponse(number, is_shared=False)
        except asyncio.CancelledError:
            self._link.send(DropRun(number))
            raise

    def _store(self, number: int, answer: Answer) -> None:
        """Send the response to the supervisor: now, or soon if it takes long to encode."""
        size = size_of(answer)
        if size > MAX_ANSWER_BYTES:
            self._send_response(number, None)
        elif size > _LONG_ANSWER_BYTES:
            self._link.start(self._store_later(number, answer))
        else:
            self._send_response(number, _encode(answer))

    async def _store_later(self, number: int, answer: Answer) -> None:
        self._send_response(number, await asyncio.to_thread(_encode, answer))

    def _send_response(self, number: int, content: bytes | None) -> None:
        """`content`: None for a response that cannot be sent."""
        if content is None or len(content) > MAX_ANSWER_BYTES or self._link.is_full:
            self._link.send(DropRun(number, is_shared=False))
        else:
            self._link.send(StoreResponse(number, content))


async def _digest_of(owner: tuple[Hashable, ...], request: CacheableRequest) -> bytes | None:
    """Return the digest of all that the response depends on; None for a request that cannot be cached."""
    if isinstance(request, TensorBatch):
        size = sum(value.nbytes for value in request.inputs.values() if isinstance(value, np.ndarray))
    elif isinstance(request, ImageRequest | ImagePairRequest):
        size = sum(map(len, request.images))
    elif isinstance(request, ConversationRequest):
        size = sum(len(each.data) for each in request.conversation.images)
        size += sum(len(message.content) for message in request.conversation.messages)
    elif isinstance(request, TaskRequest):
        size = sum(len(value) for each in request.inputs for value in each.values())
    elif isinstance(request, TextRequest):
        size = sum(map(len, request.texts)) + 8 * sum(map(len, request.token_ids or ()))
    else:
        size = sum(len(one) + len(other) for one, other in request.pairs)
    if size < LONG_BYTES:
        return _digest_now(owner, request)
    return await asyncio.to_thread(_digest_now, owner, request)


def _digest_now(owner: tuple[Hashable, ...], request: CacheableRequest) -> bytes | None:
    key, _ = key_of(owner, request, _digest_of_tensor)
    try:
        # Msgpack has a type and a length in front of each part, so that two keys never have the same bytes.
        return None if key is None else sha256(msgspec.msgpack.encode(key)).digest()
    except (UnicodeEncodeError, OverflowError, TypeError):
        return None  # it has no form in msgpack


def _digest_of_tensor(array: Array) -> bytes:
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def _encode(answer: Answer) -> bytes | None:
    """Return the response in msgpack; None where msgpack cannot hold it."""
    try:
        return msgspec.msgpack.encode(answer_to_plain(answer), enc_hook=_write)
    except (UnicodeEncodeError, OverflowError, TypeError):
        return None


async def _decode(content: bytes) -> Answer:
    if len(content) < _LONG_ANSWER_BYTES:
        return _decode_now(content)
    return await asyncio.to_thread(_decode_now, content)


def _decode_now(content: bytes) -> Answer:
    return cast(Answer, answer_from_plain(msgspec.msgpack.decode(content, ext_hook=_read)))


def _shared_error(error: BaseException) -> ErrorState | None:
    """Return the error for the others that wait for the run; None where the next of them has to run the request.

    That is so for a cancelled run, and for errors that are of one sender, such as a quota, or that cannot be sent.
    """
    if not isinstance(error, Exception):
        return None
    state = error_to_plain(error)
    is_same = not isinstance(error, RoundhouseError) or type(error).__name__ == state.name
    return state if is_same else None
