"""Delays of the restarts of a process, with an injected clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.backoff import RestartBackoff
from tests.support.clocks import Clock

durations_s = st.floats(0, 1000)
jumps_s = st.floats(-1e6, 1e6)


def test_policy_before_first_crash_has_no_delay() -> None:
    policy = RestartBackoff(Clock())
    assert (policy.crashes, policy.delay_s, policy.start_in_s()) == (0, 0.0, 0.0)
    assert not policy.expects_restart_soon


def test_delays_double_up_to_one_minute() -> None:
    policy = RestartBackoff(Clock())
    delays = []
    for _ in range(2000):
        policy.crashed()
        delays.append(policy.start_in_s())
    assert delays[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(delays[8:]) == {60}


def test_requests_wait_only_after_first_crash() -> None:
    policy = RestartBackoff(Clock())
    policy.crashed()
    assert policy.expects_restart_soon
    policy.serves()
    policy.crashed()
    assert not policy.expects_restart_soon


@pytest.mark.parametrize(("service_s", "delay_s"), [(59.9, 8), (60, 1)])
def test_minute_of_service_resets_delay(service_s: float, delay_s: float) -> None:
    clock = Clock()
    policy = RestartBackoff(clock)
    for _ in range(3):
        policy.crashed()
    # The time of a load is no service.
    clock.now_s += 300
    policy.serves()
    clock.now_s += service_s
    policy.crashed()
    assert policy.start_in_s() == delay_s
    assert policy.expects_restart_soon is (delay_s == 1)


def test_failed_starts_reset_no_delay() -> None:
    clock = Clock()
    policy = RestartBackoff(clock)
    policy.serves()
    clock.now_s += 100
    for delay_s in (1, 2, 4):
        policy.crashed()
        assert policy.start_in_s() == delay_s
        clock.now_s += 100


def test_retry_after_includes_load() -> None:
    clock = Clock()
    policy = RestartBackoff(clock)
    assert policy.retry_after_s(30) == 1
    policy.crashed()
    policy.crashed()
    assert policy.retry_after_s(30) == 32
    clock.now_s += 12
    assert (policy.start_in_s(), policy.retry_after_s(30)) == (0, 20)
    clock.now_s += 50
    assert policy.retry_after_s(30) == 1
    policy.serves()
    assert policy.retry_after_s(30) == 1


@given(st.lists(st.tuples(st.booleans(), durations_s), max_size=40))
def test_delay_depends_on_crashes_in_row(steps: list[tuple[bool, float]]) -> None:
    """`steps`: whether the start succeeded, and how long the process then served."""
    clock = Clock()
    policy = RestartBackoff(clock)
    in_row = 0
    for has_started, service_s in steps:
        if has_started:
            policy.serves()
        start_s = clock.now_s
        clock.now_s += service_s
        in_row = 1 if has_started and clock.now_s - start_s >= 60 else in_row + 1
        policy.crashed()
        assert policy.start_in_s() == min(60, 2 ** (in_row - 1))
        assert policy.expects_restart_soon is (in_row == 1)


@given(st.integers(1, 20), st.lists(jumps_s, max_size=20), durations_s)
def test_no_wait_exceeds_delay_with_any_clock(crashes: int, jumps: list[float], load_s: float) -> None:
    clock = Clock()
    policy = RestartBackoff(clock)
    for _ in range(crashes):
        policy.crashed()
    for jump_s in jumps:
        clock.now_s += jump_s
        assert 0 <= policy.start_in_s() <= policy.delay_s
        assert 1 <= policy.retry_after_s(load_s) <= max(1, policy.delay_s + load_s)
    left_s = policy.start_in_s()
    clock.now_s += left_s + 1e-6
    assert policy.start_in_s() == 0


def test_own_delays_replace_those_of_models() -> None:
    clock = Clock()
    policy = RestartBackoff(clock, delays_s=(0.0, 1.0, 10.0), stable_s=10.0)
    delays = []
    for _ in range(4):
        policy.crashed()
        delays.append(policy.delay_s)
    assert delays == [0.0, 1.0, 10.0, 10.0]
    for service_s, delay_s in ((9.0, 10.0), (10.0, 0.0)):
        policy.serves()
        clock.now_s += service_s
        policy.crashed()
        assert policy.delay_s == delay_s
