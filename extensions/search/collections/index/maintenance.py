"""Build the IVF index of a collection and compact its segments, on a background thread of low priority."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from extensions.search.collections.contract import CollectionSettings, IndexInfo, IndexState
from extensions.search.collections.index import index_file
from extensions.search.collections.index.compaction import LiveRows, compacted, parts_of
from extensions.search.collections.index.index_file import SavedIndex
from extensions.search.collections.index.inverted_lists import InvertedLists, calibrate_probes
from extensions.search.collections.index.kmeans import (
    SAMPLED_PER_LIST,
    Labels,
    assign_to_lists,
    number_of_lists,
    train_centroids,
)
from extensions.search.collections.index.memory_estimates import rebuild_bytes
from extensions.search.collections.memory_grant import Grant
from extensions.search.collections.store.segments import Locks, Segment, Segments, Snapshot
from frameworks.core.errors import OutOfMemory
from frameworks.core.progress import phase, step, working

log = structlog.get_logger(__name__)

MIN_CHANGED_ROWS = 10_000
"""Minimum number of unindexed or deleted rows that starts a rebuild."""
MAX_UNINDEXED_SHARE = 0.05
MAX_DELETED_SHARE = 0.25
MAX_GROWTH = 2
"""The centroids are trained again when the number of rows has grown or shrunk by this factor."""
MAX_READ_SHARE = 0.3
"""An index whose searches probe a larger share of the lists is not used."""
_NICE = 19
_READ_BATCH = 16_384
_POSTPONED = "its rebuild waits for memory"
_RETRY_S = 30.0
"""Seconds after which a rebuild without memory is tried again, if no change comes before."""


class _Stopped(Exception):
    """The collection is being closed."""


class _Postponed(Exception):
    """There is no memory for a rebuild now."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The memory of a collection, and that of the second copy of its rows during a rebuild."""

    rows: Grant
    rebuild: Grant


@dataclass(slots=True)
class Index:
    """The index of a collection and its state. `lists` changes only while `publishing` is held."""

    lists: InvertedLists | None = None
    info: IndexInfo = field(default_factory=lambda: IndexInfo(IndexState.NONE))
    refused_rows: int = 0


class Maintainer:
    """Decides after each change whether to rebuild, and rebuilds. `request_check` may be called from any thread."""

    def __init__(
        self,
        settings: CollectionSettings,
        segments: Segments,
        locks: Locks,
        grants: Grants,
        saved: SavedIndex | None,
    ) -> None:
        """`saved`: the index of an earlier process, from its file."""
        self.index = Index()
        self._settings, self._segments, self._grants = settings, segments, grants
        self._writing, self._publishing = locks.writing, locks.publishing
        self._saved = saved
        self._check_requested = threading.Event()
        self._is_stopping = False
        self._is_postponed = False
        self._thread = threading.Thread(target=self._run, name=f"collection-{settings.name}-index", daemon=True)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the index in memory."""
        saved, lists = self._saved, self.index.lists
        own = 0 if saved is None else saved.rows.nbytes + saved.labels.nbytes
        if lists is not None:
            return own + lists.memory_bytes
        return own + (0 if saved is None else saved.centroids.nbytes)

    def start(self) -> None:
        """Start the thread."""
        self._check_requested.set()
        self._thread.start()

    def request_check(self) -> None:
        """Ask the thread to check the collection after a change."""
        self._check_requested.set()

    def stop(self) -> None:
        """Stop a build within moments, and end the thread."""
        self._is_stopping = True
        self._check_requested.set()
        self._thread.join()

    def _check(self) -> None:
        if self._is_stopping:
            raise _Stopped

    def _run(self) -> None:
        if sys.platform == "linux":  # there, the priority is that of one thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._check_requested.wait(_RETRY_S if self._is_postponed else None)
            self._check_requested.clear()
            try:
                self._check()
                self._rebuild_if_needed()
                self._end_postponement()
            except _Stopped:
                return
            except _Postponed as error:
                self._postpone(str(error))
            except Exception as error:
                log.exception("the index of a collection could not be built", collection=self._settings.name)
                self.index.refused_rows = self._segments.live_rows
                self.index.info = IndexInfo(IndexState.FAILED, reason=type(error).__name__)

    def _postpone(self, reason: str) -> None:
        if not self._is_postponed:
            self._is_postponed = True
            log.warning("rebuild of a collection is postponed", collection=self._settings.name, reason=reason)
        state = IndexState.NONE if self.index.lists is None else IndexState.READY
        self.index.info = replace(self.index.info, state=state, reason=f"{_POSTPONED}: {reason}")

    def _end_postponement(self) -> None:
        self._is_postponed = False
        if (self.index.info.reason or "").startswith(_POSTPONED):  # no rebuild is needed any more
            self.index.info = replace(self.index.info, reason=None)

    @contextmanager
    def _second_copy(self, sealed: Snapshot, *, has_index: bool) -> Iterator[None]:
        """Reserve memory for a rebuild of the rows within the block; no model is evicted for it. Raises _Postponed."""
        rebuild = self._grants.rebuild
        if rebuild.is_bounded:
            needed = rebuild_bytes(self._settings, sealed, has_index=has_index)
            try:
                rebuild.grow_from_thread(needed, may_evict=False)
            except OutOfMemory as error:
                raise _Postponed(error.message) from None
        try:
            yield
        finally:
            rebuild.release_from_thread()

    def _replace(self, sealed: Snapshot, compacted_segments: list[Segment], lists: InvertedLists | None) -> None:
        """Replace segments and index by the compacted ones, while no search takes a snapshot."""
        with self._writing:
            with self._publishing:
                self._segments.replace(sealed, compacted_segments, has_index=lists is not None)
                self.index.lists = lists
            # Before a change is compared with the grant again.
            self._grants.rows.take_over(self._grants.rebuild, self._segments.memory_bytes + self.memory_bytes)

    def _rebuild_if_needed(self) -> None:
        """Build the index or compact, if enough rows have changed."""
        live, deleted = self._segments.live_rows, self._segments.deleted_rows
        has_many_deleted = deleted > MIN_CHANGED_ROWS and deleted > MAX_DELETED_SHARE * (live + deleted)
        limit = self._settings.index_rows
        lists = self.index.lists
        if limit is None or live < limit:
            if has_many_deleted or lists is not None:
                self._compact()
        elif lists is not None:
            unindexed = self._unindexed()
            if has_many_deleted or (unindexed > MIN_CHANGED_ROWS and unindexed > MAX_UNINDEXED_SHARE * live):
                self._build(lists)
        elif not self.index.refused_rows or live > MAX_GROWTH * self.index.refused_rows:
            self._build(None)
        elif has_many_deleted:
            self._compact()
        self._update_info()

    def _unindexed(self) -> int:
        snapshot = self._segments.snapshot
        return sum(part.count - part.segment.deleted_count for part in snapshot.parts[snapshot.indexed :])

    def _update_info(self) -> None:
        if self.index.lists is not None:
            self.index.info = replace(self.index.info, unindexed_rows=self._unindexed())

    def _compact(self) -> None:
        """Drop deleted rows from memory, and the index."""
        with self._writing:
            sealed = self._segments.seal()
        with self._second_copy(sealed, has_index=False), working("index", self._settings.name, "collection"):
            live = LiveRows(sealed)
            order = np.arange(len(live))
            compacted_segments = compacted(live, order, self._settings.dimensions, self._settings.metric, self._check)
            self._replace(sealed, compacted_segments, None)
        self.index.info = IndexInfo(IndexState.NONE)

    def _build(self, former: InvertedLists | None) -> None:
        """Sort the rows by inverted list. The centroids are reused unless the rows have changed too much."""
        with self._writing:
            sealed = self._segments.seal()
        with self._second_copy(sealed, has_index=True), working("index", self._settings.name, "collection"):
            if former is None:
                self.index.info = IndexInfo(IndexState.BUILDING)
            self._build_lists(sealed)
        self._save()

    def _build_lists(self, sealed: Snapshot) -> None:
        settings = self._settings
        live = LiveRows(sealed)
        saved = self._saved
        if saved is None or not saved.trained_rows / MAX_GROWTH <= len(live) <= saved.trained_rows * MAX_GROWTH:
            saved = self._trained(live)
        labels = self._labels(live, saved)
        order = np.argsort(labels, kind="stable")
        compacted_segments = compacted(live, order, settings.dimensions, settings.metric, self._check)
        starts = np.searchsorted(labels[order], np.arange(len(saved.centroids) + 1))
        squared_norms = np.vecdot(saved.centroids, saved.centroids)
        lists = InvertedLists(saved.centroids, squared_norms, starts, (0, 0), 0.0, saved.trained_rows)
        lists = calibrate_probes(
            lists, parts_of(compacted_segments), settings.metric, 0, settings.index_recall, self._check
        )
        self._saved = SavedIndex(saved.centroids, live.rows, labels, saved.trained_rows)
        is_useful = lists.nprobes[0] <= MAX_READ_SHARE * len(lists.centroids)
        self._replace(sealed, compacted_segments, lists if is_useful else None)
        self.index.refused_rows = 0 if is_useful else len(live)
        self.index.info = IndexInfo(
            state=IndexState.READY if is_useful else IndexState.MISSED,
            recall=lists.recall,
            lists=len(lists.centroids),
            probed=lists.nprobes[0],
            reason=None if is_useful else "the recall needs too many of the lists; searches are exact",
        )

    def _trained(self, live: LiveRows) -> SavedIndex:
        count = number_of_lists(len(live))
        generator = np.random.default_rng(len(live))
        chosen = generator.choice(len(live), min(len(live), count * SAMPLED_PER_LIST), replace=False)
        sample = np.empty((len(chosen), self._settings.dimensions), dtype=np.float32)
        centroids = train_centroids(live.vectors(chosen, sample), count, self._settings.metric, self._check)
        return SavedIndex(centroids, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), len(live))

    def _labels(self, live: LiveRows, saved: SavedIndex) -> Labels:
        """Return the list of each live row, int32 [n]. Only rows that are not in the saved index are assigned."""
        labels = np.full(len(live), -1, dtype=np.int32)
        if len(saved.rows):
            indices = np.minimum(np.searchsorted(saved.rows, live.rows), len(saved.rows) - 1)
            is_known = saved.rows[indices] == live.rows
            labels[is_known] = saved.labels[indices[is_known]]
        unknown = np.flatnonzero(labels < 0)
        phase("comparing the rows with the centroids", len(unknown), "rows")
        for start in range(0, len(unknown), _READ_BATCH):
            own = unknown[start : start + _READ_BATCH]
            vectors = np.empty((len(own), self._settings.dimensions), dtype=np.float32)
            labels[own] = assign_to_lists(live.vectors(own, vectors), saved.centroids, self._check)
            step(len(own))
        return labels

    def _save(self) -> None:
        assert self._saved is not None
        try:
            index_file.save(self._settings.folder, self._saved)
        except OSError as error:
            log.warning(
                "the index of a collection could not be saved", error=str(error), remedy="make room on its disk"
            )
