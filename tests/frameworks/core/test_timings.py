"""Phases of a request: times that overlap count once, whatever their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.timings import Timings

# In eighths of a second: their sums are exact.
SPAN = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda span: (span[0], span[0] + span[1]))


@given(spans=st.lists(SPAN, max_size=20))
@pytest.mark.parametrize("phase", ["decode", "queue", "compute"])
def test_phase_is_union_of_its_times(phase: str, spans: list[tuple[int, int]]) -> None:
    timings = Timings()
    add = {"decode": timings.decoded, "queue": timings.queued, "compute": timings.computed}[phase]
    covered: set[int] = set()
    for begun, ended in spans:
        add(begun / 8, ended / 8)
        covered |= set(range(begun, ended))
        assert getattr(timings, f"{phase}_s") == len(covered) / 8
    phases = timings.decode_s, timings.queue_s, timings.compute_s
    assert sum(phases) == len(covered) / 8, "no other phase has changed"
