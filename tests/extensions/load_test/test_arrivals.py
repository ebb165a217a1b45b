"""Send times of an open loop, with a clock of the test."""

from itertools import islice, pairwise

import pytest

from extensions.load_test.arrivals import Schedule, poisson, steady


def test_steady_arrivals_do_not_drift() -> None:
    times = list(islice(steady(3), 3001))
    assert times[0] == 0
    assert times[3000] == 1000.0


def test_poisson_arrivals_have_rate_and_spread() -> None:
    times = list(islice(poisson(100, seed=1), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.01, rel=0.03)
    # The standard deviation of an exponential distribution is its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.01, rel=0.05)
    assert list(islice(poisson(100, seed=1), 5)) == times[:5]


def test_late_clock_releases_every_planned_time() -> None:
    schedule = Schedule(steady(10), start_s=100.0)
    assert list(schedule.due(99.0, end_s=102.0)) == []
    assert list(schedule.due(100.0, end_s=102.0)) == [100.0]
    # The clock jumped: all of them are due, each with its own planned time.
    assert list(schedule.due(100.35, end_s=102.0)) == pytest.approx([100.1, 100.2, 100.3])
    assert schedule.next_s == pytest.approx(100.4)
    assert len(list(schedule.due(200.0, end_s=102.0))) == 16
    assert list(schedule.due(300.0, end_s=102.0)) == []
