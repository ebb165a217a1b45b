from app.workers.restart_backoff import MAX_DELAY_S, STABLE_S, RestartBackoff
from tests.support.clocks import Clock


def test_first_end_is_replaced_at_once() -> None:
    assert RestartBackoff(Clock()).ended() == 0.0


def test_delay_grows_with_ends_in_a_row() -> None:
    replacement = RestartBackoff(Clock())
    assert [replacement.ended() for _ in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, MAX_DELAY_S, MAX_DELAY_S]


def test_short_service_keeps_the_delay() -> None:
    clock = Clock()
    replacement = RestartBackoff(clock)
    replacement.ended()
    replacement.serves()
    clock.now_s += STABLE_S - 1
    assert replacement.ended() == 1.0


def test_stable_service_ends_the_delay() -> None:
    clock = Clock()
    replacement = RestartBackoff(clock)
    for _ in range(3):
        replacement.ended()
    replacement.serves()
    clock.now_s += STABLE_S
    assert replacement.ended() == 0.0
