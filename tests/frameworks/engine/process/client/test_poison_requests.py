"""Requests that crash their process: counted, refused for a while, forgotten; with an injected clock."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.engine.process.client.poison_requests import MAX_POISON_REQUESTS, PoisonRequests, RefusalRule, digest_of
from tests.support.clocks import Clock

A, B = digest_of(b"a"), digest_of(b"b")

parts = st.lists(st.binary(max_size=4), max_size=4)


@given(parts, parts)
def test_digest_equal_for_equal_parts_only(first: list[bytes], second: list[bytes]) -> None:
    assert (digest_of(*first) == digest_of(*second)) is (first == second)
    assert len(digest_of(*first)) == 16


def test_digest_counts_bytes_of_wide_items() -> None:
    wide = memoryview(bytes(8)).cast("d")
    assert digest_of(wide) == digest_of(bytes(8)) == digest_of(bytearray(8))


def test_second_crash_refuses_request_for_minute() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    assert not poison_requests.crashed(A)
    assert (poison_requests.refuses_any, poison_requests.refused_for_s(A)) == (False, 0)
    clock.now_s += 5
    assert poison_requests.crashed(A)
    assert (poison_requests.refuses_any, poison_requests.refused_for_s(A), poison_requests.refused_for_s(B)) == (
        True,
        60,
        0,
    )
    clock.now_s += 59
    assert (poison_requests.refuses_any, poison_requests.refused_for_s(A)) == (True, 1)
    clock.now_s += 1
    assert (poison_requests.refuses_any, poison_requests.refused_for_s(A)) == (False, 0)


def test_crash_after_refusal_refuses_at_once() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    poison_requests.crashed(A)
    poison_requests.crashed(A)
    clock.now_s += 61
    assert poison_requests.crashed(A)
    assert poison_requests.refused_for_s(A) == 60


def test_crashes_ten_minutes_apart_not_added() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    poison_requests.crashed(A)
    clock.now_s += 600
    assert not poison_requests.crashed(A)
    clock.now_s += 599
    assert poison_requests.crashed(A)


def test_completed_request_is_no_suspect() -> None:
    poison_requests = PoisonRequests(Clock())
    poison_requests.crashed(A)
    poison_requests.completed(A)
    poison_requests.completed(B)
    assert not poison_requests.crashed(A)


def test_full_record_forgets_oldest_crash() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    numbered = [digest_of(b"%d" % number) for number in range(MAX_POISON_REQUESTS + 1)]
    for digest in numbered[:-1]:
        poison_requests.crashed(digest)
    # A later crash of one of them drops no other one, and it is the newest then.
    assert poison_requests.crashed(numbered[1])
    assert len(poison_requests) == MAX_POISON_REQUESTS
    poison_requests.crashed(numbered[-1])
    assert len(poison_requests) == MAX_POISON_REQUESTS
    assert poison_requests.refused_for_s(numbered[1]) == 60
    assert not poison_requests.crashed(numbered[0])
    assert poison_requests.crashed(numbered[3])


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4), st.booleans()), max_size=50))
def test_no_refusal_exceeds_minute_with_any_clock(steps: list[tuple[float, int, bool]]) -> None:
    """`steps`: change of the clock, request, and whether it crashes alone."""
    clock = Clock()
    poison_requests = PoisonRequests(clock, max_requests=3)
    for change_s, number, crashes in steps:
        clock.now_s += change_s
        digest = digest_of(b"%d" % number)
        if crashes:
            is_refused = poison_requests.crashed(digest)
            assert poison_requests.refused_for_s(digest) == (60 if is_refused else 0)
            assert poison_requests.refuses_any or not is_refused
        assert len(poison_requests) <= 3
        assert 0 <= poison_requests.refused_for_s(digest) <= 60
    for number in range(5):
        clock.now_s += poison_requests.refused_for_s(digest_of(b"%d" % number)) + 1e-6
        assert poison_requests.refused_for_s(digest_of(b"%d" % number)) == 0


def test_refused_request_is_reported_once() -> None:
    refused: list[bytes] = []
    poison_requests = PoisonRequests(Clock(), on_refused=refused.append)
    poison_requests.crashed(A)
    assert refused == []
    poison_requests.crashed(A)
    assert refused == [A]


def test_request_that_others_refuse_is_refused() -> None:
    clock = Clock()
    refused: list[bytes] = []
    poison_requests = PoisonRequests(clock, on_refused=refused.append)
    poison_requests.crashed(A)
    for digest in (A, B):
        poison_requests.refuse(digest)
        assert poison_requests.refuses_any
        assert poison_requests.refused_for_s(digest) == 60
    assert refused == []
    clock.now_s += 60
    assert poison_requests.refused_for_s(B) == 0.0


def test_refused_requests_of_others_are_bounded() -> None:
    poison_requests = PoisonRequests(Clock(), max_requests=2)
    for number in range(5):
        poison_requests.refuse(digest_of(b"%d" % number))
    assert len(poison_requests) == 2


def test_rule_of_three_crashes_refuses_third() -> None:
    poison_requests = PoisonRequests(Clock(), rule=RefusalRule(crashes=3))
    assert [poison_requests.crashed(A) for _ in range(3)] == [False, False, True]
    assert poison_requests.refused_for_s(A) == 60


def test_crashes_at_once_count_as_one() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock, rule=RefusalRule(crashes=2, at_once_s=1.0))
    assert not poison_requests.crashed(A)
    assert not poison_requests.crashed(A)
    assert not poison_requests.crashed(B)
    clock.now_s += 1
    assert poison_requests.crashed(A)


def test_retry_at_once_counts() -> None:
    poison_requests = PoisonRequests(Clock(), rule=RefusalRule(crashes=2, at_once_s=1.0))
    assert not poison_requests.crashed(A)
    assert poison_requests.crashed(A, is_retry=True)
