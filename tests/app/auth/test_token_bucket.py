"""Token buckets, with an injected clock: what they admit in a minute, and the wait that they promise."""

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.token_bucket import TokenBucket
from tests.support.clocks import Clock

amounts = st.integers(1, 100_000)
pauses_s = st.lists(st.floats(0, 90), min_size=1, max_size=200)


@given(amounts, pauses_s)
def test_bucket_admits_limit_and_burst_at_most(per_minute: int, pauses: list[float]) -> None:
    """Requests arrive in bursts of 20; those that the bucket admits are counted in every window of a minute."""
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    admitted: list[float] = []
    for pause_s in pauses:
        clock.now_s += pause_s
        for _ in range(20):
            if not bucket.wait_s():
                bucket.charge(1)
                admitted.append(clock.now_s)
    assert admitted
    for start_s in admitted:
        in_window = sum(start_s <= each < start_s + 60 for each in admitted)
        assert in_window <= floor(per_minute + max(1, per_minute / 10) + 1e-6)


@given(amounts, st.floats(0, 1e7))
def test_full_bucket_admits_its_burst(per_minute: int, idle_s: float) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    clock.now_s += idle_s
    admitted = 0
    while not bucket.wait_s():
        bucket.charge(1)
        admitted += 1
    assert admitted == max(1, per_minute // 10)


@given(amounts, st.lists(st.tuples(st.floats(0, 30), st.integers(0, 10_000)), max_size=30))
def test_wait_is_exact(per_minute: int, charges: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    for pause_s, amount in charges:
        clock.now_s += pause_s
        bucket.charge(amount)
    wait_s, now_s = bucket.wait_s(), clock.now_s
    if wait_s:
        clock.now_s = now_s + wait_s * (1 - 1e-6) - 1e-6
        assert bucket.wait_s() > 0
    clock.now_s = now_s + wait_s * (1 + 1e-6) + 1e-6
    assert bucket.wait_s() == 0


@given(amounts, st.lists(st.tuples(st.floats(0, 10), st.integers(0, 100_000)), min_size=1, max_size=50))
def test_debt_is_paid_at_the_rate(per_minute: int, charges: list[tuple[float, int]]) -> None:
    """A bucket that is charged beyond what it has is full again when all of it has refilled."""
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    missing = 0.0
    for pause_s, amount in charges:
        clock.now_s += pause_s
        missing = max(0.0, missing - pause_s * per_minute / 60) + amount
        bucket.charge(amount)
    assert bucket.reset_s() == pytest.approx(missing * 60 / per_minute, rel=1e-6, abs=1e-6)
    assert bucket.left() == pytest.approx(max(0.0, bucket.burst - missing), rel=1e-6, abs=1e-3)


def test_bucket_of_one_a_minute_admits_one() -> None:
    clock = Clock()
    bucket = TokenBucket(1, clock)
    assert bucket.wait_s() == 0
    bucket.charge(1)
    assert bucket.wait_s() == pytest.approx(60)
    clock.now_s += 60.001
    assert bucket.wait_s() == 0
