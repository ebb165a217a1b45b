"""Retries after a crash: which requests fail, which run alone, and which run beside each other."""

from frameworks.engine.process.client.poison_requests import PoisonRequests, RefusalRule, digest_of
from frameworks.engine.process.client.retries import MAX_BESIDE, InFlight, RetryQueue
from tests.support.clocks import Clock


def digest(request_id: int) -> bytes:
    return digest_of(b"%d" % request_id)


def queue(suspects: PoisonRequests | None = None) -> RetryQueue:
    return RetryQueue(PoisonRequests(Clock()) if suspects is None else suspects, digest)


def begun(*ids: int, has_streamed: bool = False) -> list[InFlight]:
    return [InFlight(each, True, has_streamed) for each in ids]


def sent(*ids: int) -> list[InFlight]:
    return [InFlight(each, False, False) for each in ids]


def test_empty_queue_has_nothing_due() -> None:
    retries = queue()
    assert retries.is_empty
    assert (retries.due(), retries.crashed([]), retries.give_up()) == ([], [], [])
    assert retries.is_empty


def test_suspects_run_beside_each_other_before_others() -> None:
    retries = queue()
    assert retries.crashed([*begun(1, 2), *sent(3, 4)]) == []
    retries.hold(5)
    assert retries.due() == [1, 2]
    assert retries.due() == []
    assert (retries.num_suspects, retries.runs_beside) == (2, True)
    retries.ended(1, is_completed=True)
    assert retries.due() == []
    retries.ended(2, is_completed=True)
    assert not retries.is_empty
    assert retries.due() == [3, 4, 5]
    assert (retries.is_empty, retries.num_suspects) == (True, 0)


def test_suspects_run_alone_after_second_crash() -> None:
    retries = queue()
    assert retries.crashed(begun(1, 2, 3, 4)) == []
    assert retries.due() == [1, 2, 3, 4]
    retries.ended(2, is_completed=True)
    # No run counts: also not that of the last one, and of one that had not begun.
    assert retries.crashed([*begun(1, 3), *sent(4)]) == []
    for each in (1, 3):
        assert retries.due() == [each]
        assert not retries.runs_beside
        retries.ended(each, is_completed=True)
    assert retries.due() == [4]
    assert retries.crashed(begun(4)) == [4]
    assert retries.is_empty


def test_last_suspect_of_round_not_blamed() -> None:
    suspects = PoisonRequests(Clock())
    retries = queue(suspects)
    retries.crashed(begun(1, 2))
    assert retries.due() == [1, 2]
    # A cancelled request may still run when its process crashes.
    retries.ended(1, is_completed=False)
    assert retries.crashed(begun(2)) == []
    assert len(suspects) == 0
    assert retries.due() == [2]


def test_equal_suspects_run_after_first_is_answered() -> None:
    retries = RetryQueue(PoisonRequests(Clock()), lambda request_id: digest(request_id % 10))
    retries.crashed(begun(1, 2, 11, 21))
    assert retries.due() == [1, 2]
    retries.ended(1, is_completed=True)
    retries.ended(2, is_completed=True)
    assert retries.due() == [11, 21]
    assert retries.crashed(begun(11, 21)) == []
    assert retries.due() == [11]


def test_content_that_crashed_runs_alone() -> None:
    retries = RetryQueue(PoisonRequests(Clock()), lambda request_id: digest(request_id % 10))
    retries.crashed(begun(1, 2, 11, 21, 12))
    assert retries.due() == [1, 2]
    retries.ended(2, is_completed=True)
    retries.crashed(begun(1))
    # The copies of 1 run alone after it; that of 2 was answered once, and runs next.
    assert retries.due() == [12]
    retries.ended(12, is_completed=True)
    assert retries.due() == [1]
    assert retries.crashed(begun(1)) == [1]
    assert retries.due() == [11]
    assert retries.crashed(begun(11)) == [11]
    assert retries.due() == [21]


def test_round_of_suspects_is_bounded() -> None:
    retries = queue()
    ids = list(range(2 * MAX_BESIDE + 1))
    retries.crashed(begun(*ids))
    rounds = []
    while due := retries.due():
        rounds.append(len(due))
        for each in due:
            retries.ended(each, is_completed=True)
    assert rounds == [MAX_BESIDE, MAX_BESIDE, 1]


def test_stopped_round_runs_again() -> None:
    retries = queue()
    retries.crashed(begun(1, 2))
    for _ in range(3):
        assert retries.due() == [1, 2]
        assert retries.stopped(begun(1, 2)) == []
    assert retries.due() == [1, 2]
    assert retries.crashed(begun(1, 2)) == []
    assert retries.due() == [1]


def test_text_of_round_fails_only_when_read() -> None:
    retries = queue()
    retries.crashed(begun(1, 2))
    retries.due()
    assert retries.crashed([*begun(1, has_streamed=True), *begun(2)]) == [1]
    assert retries.due() == [2]


def test_request_that_streamed_fails() -> None:
    retries = queue()
    assert retries.crashed([*begun(1, has_streamed=True), *begun(2)]) == [1]
    assert retries.due() == [2]


def test_only_suspect_fails_after_second_run() -> None:
    retries = queue()
    assert retries.crashed([*begun(1), *sent(2)]) == []
    assert retries.due() == [1]
    assert retries.crashed(begun(1)) == [1]
    assert retries.due() == [2]


def test_unreported_run_makes_all_suspects() -> None:
    retries = queue()
    assert retries.crashed(sent(1, 2)) == []
    assert retries.due() == [1, 2]
    assert retries.crashed(sent(1, 2)) == []
    assert retries.due() == [1]
    assert retries.crashed(sent(1)) == [1]


def test_equal_request_fails_in_first_run() -> None:
    suspects = PoisonRequests(Clock())
    retries = RetryQueue(suspects, lambda request_id: digest(request_id % 10))
    assert retries.crashed(begun(1)) == []
    assert retries.due() == [1]
    retries.ended(1, is_completed=False)
    # The second crash in which it was the only suspect, and its first run.
    assert retries.crashed(begun(11)) == [11]
    assert suspects.refused_for_s(digest(1)) == 60


def test_held_requests_have_no_part_in_crash() -> None:
    retries = queue()
    retries.crashed([*begun(1, 2), *sent(3)])
    assert retries.due() == [1, 2]
    assert retries.crashed(begun(1, 2)) == []
    assert retries.due() == [1]
    assert [retries.holds(each) for each in (1, 2, 3)] == [False, True, True]
    assert retries.crashed(sent(1, 2, 3)) == [1]
    assert retries.due() == [2]
    retries.ended(2, is_completed=True)
    assert retries.due() == [3]


def test_crash_of_idle_process_suspects_nothing() -> None:
    suspects = PoisonRequests(Clock())
    assert RetryQueue(suspects, digest).crashed([]) == []
    assert len(suspects) == 0


def test_completed_suspect_is_forgotten() -> None:
    suspects = PoisonRequests(Clock())
    retries = RetryQueue(suspects, digest)
    retries.crashed(begun(1))
    assert len(suspects) == 1
    retries.due()
    retries.ended(1, is_completed=True)
    assert len(suspects) == 0


def test_cancelled_suspect_stays_in_record() -> None:
    suspects = PoisonRequests(Clock())
    retries = RetryQueue(suspects, digest)
    retries.crashed(begun(1))
    retries.due()
    retries.ended(1, is_completed=False)
    assert len(suspects) == 1
    assert retries.is_empty


def test_held_request_may_end_before_its_retry() -> None:
    retries = queue()
    retries.crashed([*begun(1, 2), *sent(3)])
    for request_id in (1, 3, 2):
        retries.ended(request_id, is_completed=False)
    assert retries.is_empty
    assert retries.due() == []


def test_failed_start_returns_all_held() -> None:
    retries = queue()
    retries.crashed([*begun(1, 2), *sent(3)])
    retries.hold(4)
    assert retries.give_up() == [1, 2, 3, 4]
    assert retries.is_empty
    assert retries.due() == []


def test_stopped_process_makes_no_suspects() -> None:
    retries = queue()
    for _ in range(5):
        assert retries.stopped([*begun(1, 2), *sent(3)]) == []
        assert retries.due() == [1, 2, 3]
    assert retries.crashed(begun(1)) == []


def test_stopped_process_fails_begun_answers() -> None:
    retries = queue()
    assert retries.stopped([*begun(1, has_streamed=True), *begun(2)]) == [1]
    assert retries.due() == [2]


def test_suspect_stays_alone_after_stop() -> None:
    retries = queue()
    assert retries.crashed([*begun(1), *sent(2)]) == []
    assert retries.due() == [1]
    assert retries.stopped(begun(1)) == []
    assert retries.due() == [1]
    assert retries.crashed(begun(1)) == [1]
    assert retries.due() == [2]


def test_rule_of_three_crashes_permits_three_runs() -> None:
    retries = queue(PoisonRequests(Clock(), rule=RefusalRule(crashes=3, at_once_s=1.0)))
    for _ in range(2):
        assert retries.crashed(begun(1)) == []
        assert retries.due() == [1]
    assert retries.crashed(begun(1)) == [1]
