"""Open a collection in this process: records on disk, vectors in memory, one thread to write, one to search."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import orjson

from extensions.search.collections.batch_search import Search, Searcher
from extensions.search.collections.batch_worker import BatchWorker, QueueLimit
from extensions.search.collections.contract import CheckedRecords, CollectionInfo, CollectionSettings
from extensions.search.collections.index import index_file
from extensions.search.collections.index.maintenance import Grants, Maintainer
from extensions.search.collections.index.memory_estimates import MemoryGrowth, row_bytes
from extensions.search.collections.memory_grant import Grant, MemoryNeeded
from extensions.search.collections.scan.scoring import compiled_kernels
from extensions.search.collections.store.metadata_columns import Schema
from extensions.search.collections.store.segments import Locks, Segments, normalized
from extensions.search.collections.store.sqlite_store import Reader, Store, disk_errors
from extensions.search.collections.transactions import Change, ChangeWriter, Delete
from extensions.search.collections.validation import checked_id, checked_queries, checked_records
from frameworks.core.errors import Draining
from frameworks.core.filters import Filter
from frameworks.core.progress import Work, working
from frameworks.core.vector_search import Hit, Record, Vectors
from frameworks.models.residency.ledger import MemoryLedger

T = TypeVar("T")

MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Bytes of vectors and texts that are queued for a commit, and of queries that are queued for a search."""
MAX_BATCH_SEARCHES = 64
GATHER_SHARE = 0.05
"""Share of a batch's run time that the next batch waits for more queries."""


async def open_collection(settings: CollectionSettings, budget: MemoryLedger | None = None) -> "Collection":
    """Open the collection, or create it: read its vectors into memory and start its threads.

    Call it on the event loop that uses the collection. `budget`: of its memory; None without a bound. Raises
    CollectionInUse, InvalidCollection, CollectionFailed, StorageFull, OutOfMemory.
    """
    owners = settings.owner, f"the rebuild of {settings.owner}"
    grants = Grants(*(Grant(None if budget is None else budget.holding(owner)) for owner in owners))
    # A thread of its own: the event loop waits for those of `to_thread` at its end.
    thread = ThreadPoolExecutor(1, f"collection-{settings.name}-open")
    opening = asyncio.get_running_loop().run_in_executor(thread, _Opened, settings, grants)
    thread.shutdown(wait=False)
    try:
        opened = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda done: _abandon(done, grants))
        raise
    except BaseException:
        grants.rows.close()
        raise
    return Collection(settings, opened)


def _abandon(opening: "asyncio.Future[_Opened]", grants: Grants) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
    grants.rows.close()


class _Opened:
    """The files and the rows of an open collection. Constructing it reads all vectors."""

    def __init__(self, settings: CollectionSettings, grants: Grants) -> None:
        self._settings, self.grants = settings, grants
        self.store = Store(settings)
        try:
            self.segments = Segments(settings.dimensions, settings.metric, Schema())
            with working("load", settings.name, "collection") as work:
                self._load(work)
            self.saved_index = index_file.load(settings.folder, settings.dimensions)
            with disk_errors(settings.name):
                self.search_reader, self.reader = Reader(self.store.file), Reader(self.store.file)
            with working("compile", settings.name, "collection"):
                compiled_kernels()
        except BaseException:
            self.store.close()
            raise

    def _load(self, work: Work) -> None:
        """Read all rows, after a reservation of their memory."""
        settings, segments, grant = self._settings, self.segments, self.grants.rows
        index_bytes = index_file.size_of(settings.folder)
        # A collection that is too large is refused before it is read. Columns are reserved as they appear.
        count = self.store.count()
        work.phase("rows", count, "rows")
        grant.grow_from_thread(index_bytes + count * row_bytes(settings.dimensions, settings.metric))
        for loaded in self.store.load():
            growth = MemoryGrowth(settings, segments).add(loaded.metadata)
            grant.grow_from_thread(index_bytes + segments.memory_bytes + growth.size_bytes)
            segments.schema.keys.update(*loaded.metadata)
            segments.add(loaded.rows, normalized(loaded.vectors, settings.metric), loaded.metadata)
            segments.publish([])
            work.step(len(loaded.rows))

    def close(self) -> None:
        """Close the readers and the store. The collection closes its threads."""
        self.search_reader.close()
        self.reader.close()
        self.store.close()


class Collection:
    """A ServedCollection that is open in this process. Use it on the event loop that opened it."""

    def __init__(self, settings: CollectionSettings, opened: _Opened) -> None:
        self.settings = settings
        self._opened = opened
        self._segments = opened.segments
        locks = Locks()
        self._grants = opened.grants
        self._maintainer = Maintainer(settings, opened.segments, locks, opened.grants, opened.saved_index)
        self._index = self._maintainer.index
        self._searcher = Searcher(settings, opened.search_reader, opened.segments, self._index, locks.publishing)
        writer = ChangeWriter(settings, opened.store, opened.segments, locks, self._maintainer, opened.grants.rows)
        name = f"collection-{settings.name}"
        self._searches: BatchWorker[Search, list[list[Hit]]] = BatchWorker(
            f"{name}-search", self._searcher.run, max_batch=MAX_BATCH_SEARCHES, gather_share=GATHER_SHARE
        )
        self._changes: BatchWorker[Change, int] = BatchWorker(f"{name}-write", writer.write)
        self._reading = ThreadPoolExecutor(1, f"{name}-read")
        self._search_limit = QueueLimit(
            f'collection "{settings.name}" (searches)', settings.max_waiting, MAX_QUEUED_BYTES
        )
        self._change_limit = QueueLimit(
            f'collection "{settings.name}" (changes)', settings.max_waiting, MAX_QUEUED_BYTES
        )
        self._is_closed = False
        self._maintainer.start()

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory now: vectors, filter columns and index."""
        return self._segments.memory_bytes + self._maintainer.memory_bytes

    async def search(
        self,
        vectors: Vectors,
        top_k: int,
        *,
        where: Filter | None = None,
        include_vectors: bool = False,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return up to `top_k` hits for each row of `vectors`, float32 [n, dimensions], the best first."""
        queries = checked_queries(vectors, self.settings.dimensions, top_k)
        if not len(queries):
            return []
        with self._search_limit.held(len(queries), queries.nbytes):
            return await self._searches.run(Search(queries, top_k, where, include_vectors, exact))

    async def upsert(self, records: Sequence[Record]) -> int:
        """Insert or replace records; return how many."""
        with self._change_limit.held(1, self._size_of(len(records), [each.text for each in records])):
            return await self._upsert(await self._read(checked_records, records, self.settings.dimensions))

    async def upsert_checked(self, records: CheckedRecords) -> int:
        """As `upsert`, of records that were checked in another process."""
        with self._change_limit.held(1, self._size_of(len(records.ids), records.texts)):
            return await self._upsert(records)

    def _size_of(self, count: int, texts: Sequence[str | None]) -> int:
        return 4 * self.settings.dimensions * count + sum(len(each or "") for each in texts)

    async def _upsert(self, records: CheckedRecords) -> int:
        while records.ids:
            try:
                return await self._changes.run(records)
            except MemoryNeeded as needed:
                await self._grants.rows.grow(needed.size_bytes)
        return 0

    async def delete(self, ids: Sequence[str] | None = None, where: Filter | None = None) -> int:
        """Delete records; return how many there were."""
        if (ids is None) == (where is None):
            raise ValueError("expected ids or a filter")
        for index, each in enumerate(ids or ()):
            checked_id(each, f"ids[{index}]")
        with self._change_limit.held(1, 64 * len(ids or ())):
            return await self._changes.run(Delete(ids, where))

    async def get(self, ids: Sequence[str], *, include_vectors: bool = False) -> list[Record | None]:
        """Return the records of `ids` in this order; None for those that do not exist."""
        return await self._read(self._get, ids, include_vectors)

    def _get(self, ids: Sequence[str], include_vectors: bool) -> list[Record | None]:
        reader = self._opened.reader
        with disk_errors(self.settings.name):
            try:
                reader.begin()
                found = reader.by_ids(ids)
                vectors = reader.vectors([each.row for each in found.values()]) if include_vectors else {}
            finally:
                reader.end()
        return [
            Record(each.id, vectors.get(each.row), each.text, orjson.loads(each.metadata))
            if (each := found.get(id_)) is not None
            else None
            for id_ in ids
        ]

    async def info(self) -> CollectionInfo:
        """Return the state of the collection."""
        disk_bytes = await self._read(self._opened.store.disk_bytes)
        segments = self._segments
        return CollectionInfo(
            name=self.settings.name,
            rows=segments.live_rows,
            dimensions=self.settings.dimensions,
            metric=self.settings.metric,
            memory_bytes=self.memory_bytes,
            disk_bytes=disk_bytes,
            index=self._index.info,
            metadata_keys=tuple(sorted(segments.schema.keys)),
            searches=self._searcher.searches,
            batches=self._searcher.batches,
            waiting=self._search_limit.count,
        )

    async def close(self) -> None:
        """Answer the queued calls, close the files and release the lock."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._maintainer.stop)
        await self._changes.close()
        await self._searches.close()
        await asyncio.to_thread(self._close)
        self._grants.rows.close()
        self._grants.rebuild.close()

    def _close(self) -> None:
        self._reading.shutdown()
        self._searcher.close()
        self._opened.close()

    async def _read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function on the thread that checks and reads."""
        if self._is_closed:
            raise Draining(Draining.REFUSED)
        return await asyncio.get_running_loop().run_in_executor(self._reading, function, *arguments)
