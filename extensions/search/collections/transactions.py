"""Commit queued changes of a collection as a group: one transaction and one disk sync (group commit)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from extensions.search.collections.contract import (
    MAX_METADATA_KEYS,
    CheckedRecords,
    CollectionFailed,
    CollectionFull,
    CollectionSettings,
    StorageFull,
)
from extensions.search.collections.index.maintenance import Maintainer
from extensions.search.collections.index.memory_estimates import MemoryGrowth
from extensions.search.collections.memory_grant import Grant, MemoryNeeded
from extensions.search.collections.store.segments import Deletion, Locks, Segments, Snapshot, normalized
from extensions.search.collections.store.sqlite_store import Store, disk_errors
from frameworks.core.errors import InvalidInput, OutOfMemory
from frameworks.core.filters import Filter


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete records by ids, or those that match a filter."""

    ids: Sequence[str] | None
    where: Filter | None


Change = CheckedRecords | Delete
Outcome = int | Exception
"""How many records were upserted or deleted, or why none were."""


class ChangeWriter:
    """Applies changes to the store and then to memory. Used by one thread."""

    def __init__(
        self,
        settings: CollectionSettings,
        store: Store,
        segments: Segments,
        locks: Locks,
        maintainer: Maintainer,
        grant: Grant,
    ) -> None:
        """`maintainer`: looks at the collection after each transaction. `grant`: the memory that rows may use."""
        self._settings, self._store, self._segments = settings, store, segments
        self._locks, self._maintainer, self._grant = locks, maintainer, grant
        self._failure: CollectionFailed | None = None

    def write(self, changes: Sequence[Change]) -> list[Outcome]:
        """Apply changes in their order and return the outcome of each. A change is applied as a whole or not at all.

        The outcome MemoryNeeded is no refusal: the change is made again after a larger grant.
        """
        outcomes: list[Outcome] = []
        for group in _groups(changes):
            try:
                outcomes += self._commit(group)
            except (StorageFull, CollectionFailed, OutOfMemory, MemoryNeeded) as error:
                # A large change may be the cause: the others may be possible without it.
                outcomes += [error] if len(group) == 1 else [self._alone(change) for change in group]
        return outcomes

    def _alone(self, change: Change) -> Outcome:
        try:
            return self._commit([change])[0]
        except (StorageFull, CollectionFailed, OutOfMemory, MemoryNeeded) as error:
            return error

    def _commit(self, group: Sequence[Change]) -> list[Outcome]:
        if self._failure is not None:
            raise self._failure
        with disk_errors(self._settings.name), self._locks.writing:
            self._check_memory(group)
            try:
                deleted: list[int] = []
                self._store.begin()
                outcomes = [self._apply(change, deleted) for change in group]
                deletion = self._segments.deletion(deleted)
                with self._locks.publishing:
                    self._store.commit()
                    self._publish(deletion)
            except BaseException as error:
                self._segments.discard()
                self._store.rollback()
                self._grant.lower(self._memory_bytes)
                if isinstance(error, MemoryError):
                    raise OutOfMemory(
                        f'collection "{self._settings.name}": expected memory for new rows, got none; nothing was '
                        "written; make room"
                    ) from error
                raise
        self._maintainer.request_check()
        return outcomes

    @property
    def _memory_bytes(self) -> int:
        return self._segments.memory_bytes + self._maintainer.memory_bytes

    def _check_memory(self, group: Sequence[Change]) -> None:
        """Raise MemoryNeeded where the grant is too small for the records of these changes."""
        if not self._grant.is_bounded:
            return
        growth = MemoryGrowth(self._settings, self._segments)
        for change in group:
            if isinstance(change, CheckedRecords):
                growth.add(change.metadata)
        if growth.size_bytes:
            needed = self._memory_bytes + growth.size_bytes
            if needed > self._grant.granted:
                raise MemoryNeeded(needed)

    def _publish(self, deletion: Deletion) -> None:
        """Change memory as the disk has been changed. All that needs memory is done before; should it fail
        nevertheless, memory is older than the disk, and no change is accepted any more.
        """
        try:
            self._segments.publish(deletion)
        except BaseException as error:
            self._failure = CollectionFailed(
                f'collection "{self._settings.name}": the last changes are on the disk and not in memory; restart the '
                "server"
            )
            raise self._failure from error

    def _apply(self, change: Change, deleted: list[int]) -> Outcome:
        if isinstance(change, CheckedRecords):
            return self._upsert(change, deleted)
        if change.ids is not None:
            rows = self._store.delete_ids(change.ids)
        else:
            assert change.where is not None
            rows = matching_rows(self._segments, self._segments.snapshot, change.where)
            self._store.delete(rows)
        deleted += rows
        return len(rows)

    def _upsert(self, change: CheckedRecords, deleted: list[int]) -> Outcome:
        keys = self._segments.schema.keys
        new = set().union(*change.metadata) - keys
        if len(keys) + len(new) > MAX_METADATA_KEYS:
            return InvalidInput(
                "records",
                f"expected at most {MAX_METADATA_KEYS} different metadata keys in a collection, got "
                f'{len(keys) + len(new)} with "{min(new)}"; use the keys that there are',
            )
        rows, replaced = self._store.upsert(change.ids, change.vectors, change.texts, change.encoded)
        deleted += replaced
        self._check_rows(len(rows) - len(deleted))
        self._segments.add(rows, normalized(change.vectors, self._settings.metric), change.metadata)
        keys |= new
        return len(rows)

    def _check_rows(self, more: int) -> None:
        """Raise CollectionFull for too many rows, before memory is taken for them."""
        limit, count = self._settings.max_rows, self._segments.live_rows + self._segments.pending_rows + more
        if limit is not None and count > limit:
            raise CollectionFull(
                f'collection "{self._settings.name}": expected at most {limit} rows, got {count}; nothing was written; '
                "delete records or raise max_rows"
            )


def matching_rows(segments: Segments, snapshot: Snapshot, where: Filter) -> list[int]:
    """Return the numbers of the live rows that match."""
    found: list[int] = []
    for part in snapshot.parts:
        mask = segments.schema.mask(where, part.segment.columns, part.count)
        mask &= part.segment.deleted_at[: part.count] > snapshot.sequence
        found += part.segment.rows[np.flatnonzero(mask)].tolist()
    return found


def _groups(changes: Sequence[Change]) -> list[list[Change]]:
    """Split changes into transactions: a filter sees what is published, so its change has one of its own."""
    groups: list[list[Change]] = []
    is_open = False
    for change in changes:
        is_alone = isinstance(change, Delete) and change.ids is None
        if is_open and not is_alone:
            groups[-1].append(change)
        else:
            groups.append([change])
        is_open = not is_alone
    return groups
