"""Build the index of a collection and drop deleted rows from memory, on a thread of low priority."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from frameworks.collections.contract import CollectionSettings, IndexInfo, IndexState
from frameworks.collections.index import index_file
from frameworks.collections.index.compaction import LiveRows, parts_of, rebuilt
from frameworks.collections.index.index_file import KeptIndex
from frameworks.collections.index.inverted_lists import Lists
from frameworks.collections.index.kmeans import (
    SAMPLED_PER_LIST,
    Labels,
    assign,
    calibrated,
    number_of_lists,
    train,
)
from frameworks.collections.index.memory_estimates import rebuild_bytes
from frameworks.collections.memory_grant import Grant
from frameworks.collections.store.segments import Locks, Segment, Segments, Snapshot
from frameworks.errors import OutOfMemory
from frameworks.progress import phase, step, working

log = structlog.get_logger(__name__)

MIN_CHANGED_ROWS = 10_000
"""Fewer unindexed or deleted rows are no reason to build."""
MAX_UNINDEXED_SHARE = 0.05
MAX_DEAD_SHARE = 0.25
MAX_GROWTH = 2
"""The centres are computed again when the rows have become so many times more."""
MAX_READ_SHARE = 0.3
"""An index that reads more of the rows than this is of no use."""
_NICE = 19
_READ_AT_ONCE = 16_384
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

    lists: Lists | None = None
    info: IndexInfo = field(default_factory=lambda: IndexInfo(IndexState.NONE))
    refused_rows: int = 0


class Maintainer:
    """Decides after each change whether to rebuild, and rebuilds. `poke` may be called from any thread."""

    def __init__(
        self,
        settings: CollectionSettings,
        segments: Segments,
        locks: Locks,
        grants: Grants,
        kept: KeptIndex | None,
    ) -> None:
        """`kept`: the index of an earlier process, from its file."""
        self.index = Index()
        self._settings, self._segments, self._grants = settings, segments, grants
        self._writing, self._publishing = locks.writing, locks.publishing
        self._kept = kept
        self._poked = threading.Event()
        self._is_stopping = False
        self._is_postponed = False
        self._thread = threading.Thread(target=self._run, name=f"collection-{settings.name}-index", daemon=True)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the index in memory."""
        kept, lists = self._kept, self.index.lists
        own = 0 if kept is None else kept.rows.nbytes + kept.labels.nbytes
        if lists is not None:
            return own + lists.memory_bytes
        return own + (0 if kept is None else kept.centres.nbytes)

    def start(self) -> None:
        """Start the thread."""
        self._poked.set()
        self._thread.start()

    def poke(self) -> None:
        """Look at the collection after a change."""
        self._poked.set()

    def stop(self) -> None:
        """Stop a build within moments, and end the thread."""
        self._is_stopping = True
        self._poked.set()
        self._thread.join()

    def _check(self) -> None:
        if self._is_stopping:
            raise _Stopped

    def _run(self) -> None:
        if sys.platform == "linux":  # there, the priority is that of one thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._poked.wait(_RETRY_S if self._is_postponed else None)
            self._poked.clear()
            try:
                self._check()
                self._look()
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

    def _replace(self, sealed: Snapshot, made: list[Segment], lists: Lists | None) -> None:
        """Put rebuilt rows and their index in the place of the former ones."""
        with self._writing:
            with self._publishing:
                self._segments.replace(sealed, made, has_index=lists is not None)
                self.index.lists = lists
            # Before a change is compared with the grant again.
            self._grants.rows.take_over(self._grants.rebuild, self._segments.memory_bytes + self.memory_bytes)

    def _look(self) -> None:
        """Rebuild if it is time to."""
        live, dead = self._segments.live_rows, self._segments.dead_rows
        has_many_dead = dead > MIN_CHANGED_ROWS and dead > MAX_DEAD_SHARE * (live + dead)
        limit = self._settings.index_rows
        lists = self.index.lists
        if limit is None or live < limit:
            if has_many_dead or lists is not None:
                self._compact()
        elif lists is not None:
            unindexed = self._unindexed()
            if has_many_dead or (unindexed > MIN_CHANGED_ROWS and unindexed > MAX_UNINDEXED_SHARE * live):
                self._build(lists)
        elif not self.index.refused_rows or live > MAX_GROWTH * self.index.refused_rows:
            self._build(None)
        elif has_many_dead:
            self._compact()
        self._show()

    def _unindexed(self) -> int:
        snapshot = self._segments.snapshot
        return sum(part.count - part.segment.dead for part in snapshot.parts[snapshot.indexed :])

    def _show(self) -> None:
        if self.index.lists is not None:
            self.index.info = replace(self.index.info, unindexed_rows=self._unindexed())

    def _compact(self) -> None:
        """Drop deleted rows, and the index."""
        with self._writing:
            sealed = self._segments.seal()
        with self._second_copy(sealed, has_index=False), working("index", self._settings.name, "collection"):
            live = LiveRows(sealed)
            order = np.arange(len(live))
            made = rebuilt(live, order, self._settings.dimensions, self._settings.metric, self._check)
            self._replace(sealed, made, None)
        self.index.info = IndexInfo(IndexState.NONE)

    def _build(self, former: Lists | None) -> None:
        """Put the rows in the order of lists. Centres are kept unless the rows have changed too much."""
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
        kept = self._kept
        if kept is None or not kept.trained_rows / MAX_GROWTH <= len(live) <= kept.trained_rows * MAX_GROWTH:
            kept = self._trained(live)
        labels = self._labels(live, kept)
        order = np.argsort(labels, kind="stable")
        made = rebuilt(live, order, settings.dimensions, settings.metric, self._check)
        starts = np.searchsorted(labels[order], np.arange(len(kept.centres) + 1))
        squares = np.vecdot(kept.centres, kept.centres)
        lists = Lists(kept.centres, squares, starts, (0, 0), 0.0, kept.trained_rows)
        lists = calibrated(lists, parts_of(made), settings.metric, 0, settings.index_recall, self._check)
        self._kept = KeptIndex(kept.centres, live.rows, labels, kept.trained_rows)
        is_useful = lists.probes[0] <= MAX_READ_SHARE * len(lists.centres)
        self._replace(sealed, made, lists if is_useful else None)
        self.index.refused_rows = 0 if is_useful else len(live)
        self.index.info = IndexInfo(
            state=IndexState.READY if is_useful else IndexState.MISSED,
            recall=lists.recall,
            lists=len(lists.centres),
            probed=lists.probes[0],
            reason=None if is_useful else "the recall needs too many of the lists; searches are exact",
        )

    def _trained(self, live: LiveRows) -> KeptIndex:
        count = number_of_lists(len(live))
        generator = np.random.default_rng(len(live))
        chosen = generator.choice(len(live), min(len(live), count * SAMPLED_PER_LIST), replace=False)
        sample = np.empty((len(chosen), self._settings.dimensions), dtype=np.float32)
        centres = train(live.vectors(chosen, sample), count, self._settings.metric, self._check)
        return KeptIndex(centres, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), len(live))

    def _labels(self, live: LiveRows, kept: KeptIndex) -> Labels:
        """Return the list of each live row; only rows that the kept index does not know are compared."""
        labels = np.full(len(live), -1, dtype=np.int32)
        if len(kept.rows):
            places = np.minimum(np.searchsorted(kept.rows, live.rows), len(kept.rows) - 1)
            is_known = kept.rows[places] == live.rows
            labels[is_known] = kept.labels[places[is_known]]
        unknown = np.flatnonzero(labels < 0)
        phase("comparing the rows with the centres", len(unknown), "rows")
        for start in range(0, len(unknown), _READ_AT_ONCE):
            own = unknown[start : start + _READ_AT_ONCE]
            vectors = np.empty((len(own), self._settings.dimensions), dtype=np.float32)
            labels[own] = assign(live.vectors(own, vectors), kept.centres, self._check)
            step(len(own))
        return labels

    def _save(self) -> None:
        assert self._kept is not None
        try:
            index_file.save(self._settings.folder, self._kept)
        except OSError as error:
            log.warning("the index of a collection could not be kept", error=str(error), remedy="make room on its disk")
