"""Batches are counted by rows for each version, and added up for each model."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.counts import StepCounts

RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 64), st.floats(0, 10)))


@given(RUNS)
def test_total_is_sum_of_versions(runs: list[tuple[int, int, float]]) -> None:
    versions = [BatchCounts() for _ in range(3)]
    for version, rows, seconds in runs:
        versions[version].ran(rows, seconds)
    total = BatchCounts.total(versions)
    assert total.sizes == Counter(rows for _, rows, _ in runs)
    assert total.seconds.keys() == total.sizes.keys()
    assert sum(total.seconds.values()) == pytest.approx(sum(seconds for _, _, seconds in runs))
    assert sum(version.sizes.total() for version in versions) == len(runs), "the versions keep their own counts"


def test_total_includes_splits_and_tokens() -> None:
    assert BatchCounts.total([BatchCounts(split=Counter({8: 1})), BatchCounts(split=Counter({8: 2, 4: 1}))]).split == {
        8: 3,
        4: 1,
    }
    counts = [StepCounts(1, 2, 3, 4, 5, 6, 7), StepCounts(10, 20, 30, 40, 50, 60, 70)]
    counts[0].steps.ran(2, 0.5)
    counts[1].steps.ran(2, 0.25)
    total = StepCounts.total(counts)
    assert total == StepCounts(11, 22, 33, 44, 55, 66, 77)
    assert (total.steps.sizes, total.steps.seconds) == ({2: 2}, {2: 0.75})
    assert StepCounts.total([]) == StepCounts()
