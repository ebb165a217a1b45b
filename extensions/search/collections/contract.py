"""Define what a collection offers: its records, searches, errors, and the protocol that the server calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory
from frameworks.core.filters import Filter
from frameworks.core.vector_search import Metadata, Record, Searchable, Vectors

MAX_ID_BYTES = 512
MAX_METADATA_KEYS = 64
"""Different keys within one collection."""
MAX_METADATA_BYTES = 65_536
"""Of one record, as JSON."""
MAX_DIMENSIONS = 65_536
MAX_NUMBER = 1e15
"""Of a vector: the squares of larger ones do not fit in float32."""


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """Checked records of different ids. `vectors`: float32 [n, d], as they were sent. `encoded`: metadata as JSON."""

    ids: list[str]
    vectors: Vectors
    texts: list[str | None]
    metadata: list[Metadata]
    encoded: list[bytes]


class Metric(StrEnum):
    """The similarity metric of a collection. A higher score is always a better hit.

    COSINE: the cosine of their angle, -1 to 1; a vector of zeros scores 0. DOT: their inner product.
    EUCLID: the negative of their Euclidean distance, at most 0, as sentence-transformers scores it.
    """

    COSINE = "cosine"
    DOT = "dot"
    EUCLID = "euclid"


class CollectionInUse(ModelFailed):
    """Another process has the collection open. A collection has one process."""


class CollectionFailed(ModelFailed):
    """The disk refused a read or a write of the collection; nothing that was acknowledged is lost."""


class InvalidCollection(InvalidModel):
    """The files are damaged, or do not match the configured dimensions and metric."""

    def __init__(self, message: str) -> None:
        """`message`: without paths; callers get it."""
        super().__init__(message, message)


class StorageFull(OutOfMemory):
    """The disk is full: no part of the write was applied. Searches and deletes go on."""


class CollectionFull(OutOfMemory):
    """The collection would have more rows than `max_rows`; no part of the write was applied."""


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """One collection. `folder`: holds its files, created at the first open. `dimensions`: of every vector.

    `index_rows`: an index is built from this many rows on; None: never. `index_recall`: the share of the exact hits
    that the index must find, measured after each build; below it searches stay exact. `max_rows`: an upsert beyond it
    is refused; None: no limit. `max_waiting`: queries that wait for a search, and changes that wait for a commit;
    further ones are refused. `threads`: CPUs of one search.
    """

    name: str
    folder: Path
    dimensions: int
    metric: Metric = Metric.COSINE
    index_rows: int | None = 200_000
    index_recall: float = 0.95
    max_rows: int | None = None
    max_waiting: int = 1024
    threads: int = 1

    @property
    def owner(self) -> str:
        """The owner of its memory, for messages."""
        return f'collection "{self.name}"'


class IndexState(StrEnum):
    """NONE: too few rows. BUILDING: searches are exact meanwhile. READY: searches use it.

    MISSED: its recall was below the setting, or it was no faster; searches stay exact. FAILED: its build failed.
    """

    NONE = "none"
    BUILDING = "building"
    READY = "ready"
    MISSED = "missed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The IVF index of a collection. `recall`: measured after the build, 0 to 1.

    `lists`, `probed`: the inverted lists, and those that a search probes (nprobe); 0 without an index.
    `unindexed_rows`: newer than the index; every search scores them. `reason`: why there is no index, if it failed.
    """

    state: IndexState
    recall: float | None = None
    lists: int = 0
    probed: int = 0
    unindexed_rows: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """The state of a collection. `memory_bytes`: vectors, filter columns and index. `disk_bytes`: of its files.

    `searches`, `batches`: since the open; a batch is one GEMM for the queries that were queued together.
    `waiting`: queued queries.
    """

    name: str
    rows: int
    dimensions: int
    metric: Metric
    memory_bytes: int
    disk_bytes: int
    index: IndexInfo
    metadata_keys: tuple[str, ...]
    searches: int
    batches: int
    waiting: int


class ServedCollection(Searchable, Protocol):
    """A collection that this process or another one of the server has open. Owned by the event loop.

    Each method raises Draining after `close`, Overloaded where too much waits, CollectionFailed if the disk fails.
    A cancelled call does not disturb those that share its batch; a cancelled upsert may still be committed.
    """

    settings: CollectionSettings

    async def upsert(self, records: Sequence[Record]) -> int:
        """Insert records, or replace those of the same ids as a whole; return how many. Durable when it returns.

        All or none of them are applied. Of a repeated id the last one counts. Raises InvalidInput
        (`records[i].id`, `.vector`, `.metadata.key`), StorageFull, CollectionFull; OutOfMemory where it does not fit
        in the budget, even without idle models.
        """

    async def delete(self, ids: Sequence[str] | None = None, where: Filter | None = None) -> int:
        """Delete the records of `ids`, or those that match `where`, and return how many there were. Durable."""
