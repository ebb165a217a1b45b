"""Changes of a collection while its rows are written into new segments."""

import numpy as np
import pytest

from extensions.search.collections.contract import Metric
from extensions.search.collections.index.compaction import LiveRows, compacted
from extensions.search.collections.store.metadata_columns import Schema
from extensions.search.collections.store.segments import NOT_DELETED, Segments, Snapshot

DIMENSIONS = 4


def add(segments: Segments, rows: list[int]) -> None:
    """Add rows whose vectors hold their numbers."""
    vectors = np.repeat(np.array(rows, np.float32)[:, None], DIMENSIONS, axis=1)
    segments.add(np.array(rows, np.int64), vectors, [{"number": row} for row in rows])


def live(snapshot: Snapshot) -> dict[int, float]:
    """Return the live rows of a snapshot with the first number of their vectors."""
    found = {}
    for part in snapshot.parts:
        for position in np.flatnonzero(part.segment.deleted_at[: part.count] > snapshot.sequence):
            found[int(part.segment.rows[position])] = float(part.segment.vectors[position, 0])
    return found


@pytest.mark.parametrize("metric", [Metric.DOT, Metric.EUCLID])
def test_rebuild_keeps_changes_made_meanwhile(metric: Metric) -> None:
    segments = Segments(DIMENSIONS, metric, Schema())
    add(segments, list(range(1, 601)))
    segments.publish(segments.deletion([3]))
    sealed = segments.seal()
    rows = LiveRows(sealed)
    order = np.random.default_rng(1).permutation(len(rows))
    made = compacted(rows, order, DIMENSIONS, metric, lambda: None)
    # While the rebuild runs: rows are deleted, and others are added.
    add(segments, [601, 602])
    segments.publish(segments.deletion([5, 600]))
    earlier = segments.snapshot
    segments.replace(sealed, made, has_index=True)
    expected = {row: float(row) for row in range(1, 603) if row not in (3, 5, 600)}
    assert live(segments.snapshot) == expected
    assert live(earlier) == expected
    assert live(sealed) == {row: float(row) for row in range(1, 601) if row != 3}
    assert segments.live_rows == len(expected)
    # Later deletes reach rows of both orders.
    segments.publish(segments.deletion([7, 601]))
    assert live(segments.snapshot) == {row: value for row, value in expected.items() if row not in (7, 601)}
    assert all((segment.deleted_at == NOT_DELETED).sum() <= segment.count for segment in made)
