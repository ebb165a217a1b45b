"""Give the requests of workers the collections of the server, which the supervisor has open."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from app.workers.forwarding import SupervisorLost
from extensions.search.collections.contract import CheckedRecords, CollectionSettings
from extensions.search.collections.validation import checked_queries, checked_records
from extensions.search.operations.collections import Collections
from extensions.search.settings import CollectionEntry
from extensions.search.workers.calls import (
    Call,
    CollectionAnswer,
    CollectionAnswerPart,
    CollectionCall,
    CollectionCallPart,
    CollectionsNoted,
    CreatedCollections,
    DeleteCall,
    SearchCall,
    UpsertCall,
    decode_call,
    decode_hits,
    encode_call,
    encode_hits,
    plain_filter,
    vectors_of,
    where_of,
)
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.filters import Filter
from frameworks.core.vector_search import Hit, Record, Vectors
from frameworks.models.replicas.control import ControlLink, Workers

PART_BYTES = 1024 * 1024
"""Of one message. Those of other calls and of the supervisor's orders are sent between the parts."""
_LONG_BYTES = 64 * 1024
"""Encoding or decoding more takes longer than 0.1 ms: it is done in a thread."""
_HIT_BYTES = 100
"""Estimated size of a hit, without its vector."""

Value = TypeVar("Value")


class RemoteCollections:
    """The collections in a worker. Owned by the event loop."""

    def __init__(self, link: ControlLink) -> None:
        """Register the handlers of the link, which is not yet open."""
        self._link = link
        self._parts: dict[int, list[bytes]] = {}
        link.handle(CollectionAnswerPart, self._note_part)

    def connect(self, settings: CollectionSettings) -> "RemoteCollection":
        """Return a collection of the supervisor."""
        return RemoteCollection(settings, self)

    async def ask(self, collection: str, content: bytes) -> CollectionAnswer:
        """Send a call, and return its answer with all parts. If cancelled, a call that has not begun is not run.

        Raises the errors of the collection; SupervisorLost.
        """
        number = 0

        def make(given: int) -> CollectionCall:
            nonlocal number
            number = given
            self._parts[number] = []
            *parts, last = _parts_of(content)
            for part in parts:
                self._link.send(CollectionCallPart(number, part))
            return CollectionCall(number, collection, last)

        try:
            answer = await self._link.ask(make)
        except ChannelLost:
            raise SupervisorLost from None
        finally:
            parts = self._parts.pop(number, [])
        assert isinstance(answer, CollectionAnswer)
        return CollectionAnswer(answer.id, answer.count, b"".join([*parts, answer.content])) if parts else answer

    def _note_part(self, part: CollectionAnswerPart) -> None:
        known = self._parts.get(part.id)
        if known is not None:  # else its caller was cancelled
            known.append(part.content)


class RemoteCollection:
    """A collection that the supervisor has open. Implements ServedCollection: calls are checked and encoded here."""

    def __init__(self, settings: CollectionSettings, remote: RemoteCollections) -> None:
        self.settings = settings
        self._remote = remote

    async def search(
        self,
        vectors: Vectors,
        top_k: int,
        *,
        where: Filter | None = None,
        include_vectors: bool = False,
        exact: bool = False,
    ) -> list[list[Hit]]:
        queries = checked_queries(vectors, self.settings.dimensions, top_k)
        call = SearchCall(queries, top_k, plain_filter(where), include_vectors, exact)
        answer = await self._ask(call, queries.nbytes)
        return await _run(len(answer.content), partial(decode_hits, answer.content))

    async def upsert(self, records: Sequence[Record]) -> int:
        size = 4 * self.settings.dimensions * len(records)
        checked: CheckedRecords = await _run(size, partial(checked_records, records, self.settings.dimensions))
        return (await self._ask(UpsertCall.of(checked), size)).count

    async def delete(self, ids: Sequence[str] | None = None, where: Filter | None = None) -> int:
        call = DeleteCall(None if ids is None else list(ids), plain_filter(where))
        return (await self._ask(call, 0)).count

    async def _ask(self, call: Call, size: int) -> CollectionAnswer:
        content = await _run(size, partial(encode_call, call))
        return await self._remote.ask(self.settings.name, content)


class CollectionServer:
    """Run the calls of workers, in the supervisor. Owned by the event loop.

    A call that waits is dropped if its worker withdraws it, or is lost.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    def serve(self, link: ControlLink) -> None:
        """Answer the calls of a worker. Called before its link is open."""
        parts: defaultdict[int, list[bytes]] = defaultdict(list)

        def complete(call: CollectionCall) -> CollectionCall:
            before = parts.pop(call.id, None)
            return (
                call if before is None else CollectionCall(call.id, call.collection, b"".join([*before, call.content]))
            )

        link.handle(CollectionCallPart, lambda part: parts[part.id].append(part.content))
        link.answer(CollectionCall, partial(self._answer, link), complete)

    async def _answer(self, link: ControlLink, message: CollectionCall) -> CollectionAnswer:
        content = message.content
        call = await _run(len(content), partial(decode_call, content))
        # The worker has checked that its sender may use the collection.
        collection = self._collections.owned_by_name(message.collection)
        match call:
            case UpsertCall():
                records = await _run(len(content), call.records)
                return CollectionAnswer(message.id, await collection.upsert_checked(records))
            case DeleteCall():
                return CollectionAnswer(message.id, await collection.delete(call.ids, where_of(call)))
        hits = await collection.search(
            vectors_of(call),
            call.top_k,
            where=where_of(call),
            include_vectors=call.include_vectors,
            exact=call.is_exact,
        )
        size = sum(map(len, hits)) * (_HIT_BYTES + 4 * collection.settings.dimensions * call.include_vectors)
        *before, last = _parts_of(await _run(size, partial(encode_hits, hits)))
        for part in before:
            link.send(CollectionAnswerPart(message.id, part))
        return CollectionAnswer(message.id, 0, last)


async def _run(size: int, work: Callable[[], Value]) -> Value:
    """Return the result of `work`, which reads or writes so many bytes."""
    return work() if size < _LONG_BYTES else await asyncio.to_thread(work)


def _parts_of(content: bytes) -> list[bytes]:
    """Return the content in parts of PART_BYTES, at least one."""
    if len(content) <= PART_BYTES:
        return [content]
    return [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]


class CreatedReceiver:
    """The created collections in a worker."""

    def __init__(self, link: ControlLink, collections: Collections) -> None:
        """`link`: not yet open. `collections`: connected to those of the supervisor."""
        self._collections = collections
        link.answer(CreatedCollections, self._note)

    async def _note(self, message: CreatedCollections) -> CollectionsNoted:
        self._collections.show_created(map(CollectionEntry.model_validate_json, message.entries))
        return CollectionsNoted(message.id)


class CreatedSender:
    """Sends the created collections to all workers whenever they change. Owned by the event loop."""

    def __init__(self, workers: Workers, collections: Collections) -> None:
        """Made before the first worker is connected."""
        self._workers = workers
        self._collections = collections
        self._unconfirmed: set[asyncio.Task[None]] = set()
        collections.on_created_changed = self._send_all
        workers.on_joined(self._send)

    async def applied(self) -> None:
        """Return when all workers have the collections of now."""
        if self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    def _send_all(self) -> None:
        for link in self._workers.links.values():
            self._send(link)

    def _send(self, link: ControlLink) -> None:
        entries = [each.model_dump_json(exclude={"path"}).encode() for each in self._collections.created]
        task = link.start(self._ask(link, entries))
        self._unconfirmed.add(task)
        task.add_done_callback(self._unconfirmed.discard)

    async def _ask(self, link: ControlLink, entries: list[bytes]) -> None:
        with suppress(ChannelLost):
            await link.ask(lambda number: CreatedCollections(number, entries))
