"""Test random crashes: an innocent request is answered, a poison one fails soon, and each request ends once."""

from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from frameworks.engine.process.client.poison_requests import PoisonRequests, digest_of
from frameworks.engine.process.client.retries import InFlight, RetryQueue
from tests.support.clocks import Clock


@dataclass
class Sent:
    """A request and its state in the simulated process. `runs`: begun ones, interrupted runs included.

    `is_suspect`: a crash interrupted it. `must_run_alone`: another one did, or it was the only suspect of the first.
    """

    request_id: int
    is_poison: bool
    streams: bool = False
    has_begun: bool = False
    has_streamed: bool = False
    is_sent: bool = False
    runs: int = 0
    is_suspect: bool = False
    must_run_alone: bool = False
    end: str = ""

    def content(self) -> bytes:
        return b"poison" if self.is_poison else b"%d" % (self.request_id % 5)


class OnePoisonRequest(RuleBasedStateMachine):
    """A process runs batches of innocent requests and of at most one poison request, which crashes it."""

    kills_at_random = False

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Sent] = []
        self.clock = Clock()
        self.suspects = PoisonRequests(self.clock)
        self.retries = RetryQueue(self.suspects, lambda request_id: digest_of(self.requests[request_id].content()))
        self.crashes_of_poison = 0
        self.reports_runs = True

    @initialize(reports_runs=st.booleans())
    def choose_process(self, reports_runs: bool) -> None:
        """A process that does not report its runs ends before the message is sent."""
        self.reports_runs = reports_runs

    def in_flight(self) -> list[Sent]:
        return [each for each in self.requests if each.is_sent and not each.end]

    def finish(self, request: Sent, end: str) -> None:
        assert not request.end, "it ends once"
        request.end = end
        self.retries.ended(request.request_id, is_completed=end == "answered")

    def send_due(self) -> None:
        while due := [self.requests[each] for each in self.retries.due()]:
            for request in due:
                assert not request.is_sent
                assert not request.end
                if self.suspects.refuses_any and self.suspects.refused_for_s(digest_of(request.content())):
                    self.finish(request, "refused")
                else:
                    request.is_sent = True

    @rule(is_poison=st.booleans(), streams=st.booleans())
    def submit(self, is_poison: bool, streams: bool) -> None:
        is_poison = is_poison and all(each.end for each in self.requests if each.is_poison)
        request = Sent(len(self.requests), is_poison, streams and not is_poison)
        if is_poison:
            self.crashes_of_poison = 0
        self.requests.append(request)
        if self.suspects.refuses_any and self.suspects.refused_for_s(digest_of(request.content())):
            assert is_poison or self.kills_at_random
            request.end = "refused"
        elif self.retries.is_empty:
            request.is_sent = True
        else:
            self.retries.hold(request.request_id)

    @precondition(lambda self: any(not each.has_begun for each in self.in_flight()))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Begin a batch of some requests; it ends at once where one of them is the poison request."""
        waiting = [each for each in self.in_flight() if not each.has_begun]
        batch = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=lambda each: each.request_id))
        for request in batch:
            request.has_begun = True
            request.runs += 1
        running = [each for each in self.in_flight() if each.has_begun]
        for request in running:
            assert not request.must_run_alone or running == [request], "a suspect runs alone"
        assert len({each.is_suspect for each in self.in_flight()}) == 1, "all others wait for the suspects"
        if any(each.is_poison for each in batch):
            self.crashes_of_poison += 1
            self.crash()

    @precondition(lambda self: any(each.has_begun for each in self.in_flight()))
    @rule(data=st.data())
    def stream_or_answer(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([each for each in self.in_flight() if each.has_begun]))
        # A text is withheld while another request may interrupt it.
        if request.streams and not request.has_streamed and not self.retries.runs_beside:
            request.has_streamed = True
            return
        self.finish(request, "answered")
        self.send_due()

    @precondition(lambda self: any(not each.end for each in self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([each for each in self.requests if not each.end]))
        self.finish(request, "cancelled")
        self.send_due()

    @precondition(lambda self: self.kills_at_random)
    @rule()
    def kill(self) -> None:
        self.crash()

    @rule(passed_s=st.floats(-10, 100))
    def pass_time(self, passed_s: float) -> None:
        self.clock.now_s += passed_s

    @precondition(lambda self: self.kills_at_random)
    @rule()
    def fail_to_start(self) -> None:
        """End the process, which then fails to start: all requests that are held fail."""
        self.crash(restarts=False)
        for request_id in self.retries.give_up():
            assert not self.requests[request_id].is_sent
            self.requests[request_id].end = "failed"

    def crash(self, *, restarts: bool = True) -> None:
        interrupted = self.in_flight()
        begun = [each for each in interrupted if each.has_begun and self.reports_runs] or interrupted
        failed = self.retries.crashed(
            [InFlight(each.request_id, each.has_begun and self.reports_runs, each.has_streamed) for each in interrupted]
        )
        assert len(set(failed)) == len(failed)
        for request_id in failed:
            assert self.requests[request_id] in interrupted
            assert not self.requests[request_id].end
            self.requests[request_id].end = "failed"
        for each in interrupted:
            each.is_sent = each.has_begun = False
            each.must_run_alone = each.is_suspect or begun == [each]
            each.is_suspect |= each in begun
        if restarts:
            self.send_due()

    @invariant()
    def each_runs_three_times_at_most(self) -> None:
        assert all(each.runs <= 3 for each in self.requests)

    @invariant()
    def innocent_requests_never_fail(self) -> None:
        if self.kills_at_random:
            return
        for each in self.requests:
            if not each.is_poison and not each.has_streamed:
                assert each.end in ("", "answered", "cancelled")

    @invariant()
    def poison_request_fails_within_three_crashes(self) -> None:
        assert self.crashes_of_poison <= 3
        if self.crashes_of_poison == 3:
            assert all(each.end for each in self.requests if each.is_poison)

    @invariant()
    def every_request_is_sent_or_held(self) -> None:
        for each in self.requests:
            assert self.retries.holds(each.request_id) == (not each.end and not each.is_sent)
        if self.retries.is_empty:
            assert not self.retries._runs

    def teardown(self) -> None:
        """Run all requests that are left, one at a time: the process ends each of them."""
        for _ in range(4 * len(self.requests)):
            running = self.in_flight()
            if not running:
                break
            request = running[0]
            if not request.has_begun:
                request.has_begun = True
                request.runs += 1
            if request.is_poison:
                self.crashes_of_poison += 1
                self.crash()
            else:
                self.finish(request, "answered")
                self.send_due()
            self.innocent_requests_never_fail()
            self.each_runs_three_times_at_most()
        assert all(each.end for each in self.requests)
        assert self.retries.is_empty


class AnyCrashes(OnePoisonRequest):
    """The process is killed at random too, and may fail to start."""

    kills_at_random = True


TestOnePoisonRequest = OnePoisonRequest.TestCase
TestAnyCrashes = AnyCrashes.TestCase


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=80),
    st.sets(st.integers(0, 9), max_size=3),
    st.integers(1, 40),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_poison_requests_cause_few_crashes(
    contents: list[int], poison: set[int], batch_size: int, reports_runs: bool, random: Random
) -> None:
    """`contents`: of requests that are sent at once. A batch with one of `poison` ends the process as it begins."""
    suspects = PoisonRequests(Clock())
    retries = RetryQueue(suspects, lambda request_id: digest_of(b"%d" % contents[request_id]))
    ends: dict[int, str] = {}
    sent, crashes, rounds = list(range(len(contents))), 0, 0
    while sent:
        rounds += 1
        batch = random.sample(sent, min(batch_size, len(sent)))
        if poison.isdisjoint(contents[each] for each in batch):
            for each in batch:
                ends[each] = "answered"
                retries.ended(each, is_completed=True)
        else:
            crashes += 1
            failed = retries.crashed(
                [InFlight(each, reports_runs and each in batch, has_streamed=False) for each in sent]
            )
            ends |= dict.fromkeys(failed, "failed")
            sent = []
        sent = [each for each in sent if each not in ends]
        while due := retries.due():
            for each in due:
                if suspects.refused_for_s(digest_of(b"%d" % contents[each])):
                    ends[each] = "failed"
                    retries.ended(each, is_completed=False)
                else:
                    sent.append(each)
    assert retries.is_empty
    assert ends == {each: "failed" if content in poison else "answered" for each, content in enumerate(contents)}
    num_poison = sum(content in poison for content in contents)
    assert crashes <= min(3 * num_poison, 6 * len(poison))
    assert rounds <= crashes + len(contents)
