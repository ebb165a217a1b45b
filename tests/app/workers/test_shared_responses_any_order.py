"""The supervisor's side of the response cache against a model: messages, losses and cancellations in any order."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.workers.messages import DropRun, FindResponse, FoundResponse, StoreResponse
from app.workers.shared.responses import SharedResponses
from frameworks.engine.process.wire.messages import ErrorState
from memory.result_cache import ResultCache

KEYS = st.sampled_from([("m", b"a"), ("n", b"a")])
FAILED = ErrorState("OutOfMemory", "failed")


class Caller:
    """A request of a worker. `state`: asks, runs, runs alone, done, cancelled."""

    def __init__(self, worker: "Worker", number: int, key: tuple[str, bytes]) -> None:
        self.worker = worker
        self.number = number
        self.key = key
        self.state = "asks"


class Worker:
    """A worker and its link: messages wait in two queues until they are delivered."""

    def __init__(self) -> None:
        self.handlers: dict[type, Callable[[Any], None]] = {}
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.callers: dict[int, Caller] = {}
        self.is_full = False
        self.handle = self.handlers.__setitem__
        self.send = self.down.append


class OneSupervisor(RuleBasedStateMachine):
    """Up to three workers, whose callers find responses, run requests, fail, are cancelled and are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.on_connect: list[Callable[[Any], None]] = []
        self.on_left: list[Callable[[Any], None]] = []
        workers: Any = SimpleNamespace(on_connect=self.on_connect.append, on_left=self.on_left.append)
        self.cache: ResultCache[bytes] = ResultCache(4000, None)
        self.responses = SharedResponses(self.cache, workers)
        self.workers: list[Worker] = []
        self.numbers = iter(range(10**9))
        self.stored: dict[tuple[str, bytes], set[bytes]] = {}
        self.failed: set[tuple[str, bytes]] = set()
        for _ in range(3):
            self.connect()

    @precondition(lambda self: len(self.workers) < 3)
    @rule()
    def connect(self) -> None:
        worker = Worker()
        self.workers.append(worker)
        for callback in self.on_connect:
            callback(worker)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), key=KEYS, count=st.integers(1, 3), is_received=st.booleans())
    def ask(self, data: st.DataObject, key: tuple[str, bytes], count: int, is_received: bool) -> None:
        for _ in range(count):
            worker = data.draw(st.sampled_from(self.workers))
            number = next(self.numbers)
            worker.callers[number] = Caller(worker, number, key)
            worker.up.append(FindResponse(number, *key))
            while is_received and worker.up:
                self.receive_up(worker)

    @precondition(lambda self: any(worker.up for worker in self.workers))
    @rule(data=st.data())
    def deliver_to_supervisor(self, data: st.DataObject) -> None:
        self.receive_up(data.draw(st.sampled_from([worker for worker in self.workers if worker.up])))

    @precondition(lambda self: any(worker.down for worker in self.workers))
    @rule(data=st.data())
    def deliver_to_worker(self, data: st.DataObject) -> None:
        self.receive_down(data.draw(st.sampled_from([worker for worker in self.workers if worker.down])))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), outcome=st.sampled_from(["store", "store", "fail", "keep", "large"]))
    def end_run(self, data: st.DataObject, outcome: str) -> None:
        self.end(data.draw(st.sampled_from(self.running())), outcome)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.unfinished()))
        if caller.state != "runs alone":
            caller.worker.up.append(DropRun(caller.number))
        caller.state = "cancelled"

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        self.workers.remove(worker)
        num_sent = len(worker.down)
        for callback in self.on_left:
            callback(worker)
        assert len(worker.down) == num_sent, "no run is passed to the worker that was lost"

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def change_fullness(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        worker.is_full = not worker.is_full

    @rule()
    def drop(self) -> None:
        self.responses.drop("m")

    @invariant()
    def no_run_is_duplicated(self) -> None:
        keys = [caller.key for caller in self.running() if caller.state == "runs"]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        """No caller waits when all messages are delivered and all runs have ended."""
        while any(worker.up or worker.down for worker in self.workers) or self.running():
            for worker in self.workers:
                while worker.up:
                    self.receive_up(worker)
                while worker.down:
                    self.receive_down(worker)
            for caller in self.running():
                self.end(caller, "store")
        assert not self.unfinished()
        assert len(self.responses._runs) == 0

    def receive_up(self, worker: Worker) -> None:
        message = worker.up.popleft()
        worker.handlers[type(message)](message)

    def receive_down(self, worker: Worker) -> None:
        message: FoundResponse = worker.down.popleft()
        caller = worker.callers[message.id]
        if caller.state == "cancelled":
            return
        assert caller.state == "asks", "a caller is answered once"
        if message.answer is not None:
            assert message.answer in self.stored[caller.key]
            caller.state = "done"
        elif message.error is not None:
            assert caller.key in self.failed
            caller.state = "done"
        else:
            caller.state = "runs" if message.is_shared else "runs alone"

    def end(self, caller: Caller, outcome: str) -> None:
        """End a run: with a response, an error, an error that others do not get, or a response that is too large."""
        if caller.state == "runs":
            answer = b"%s %d" % (caller.key[1], caller.number) + bytes(500)
            messages: dict[str, Any] = {
                "store": StoreResponse(caller.number, answer),
                "fail": DropRun(caller.number, FAILED),
                "keep": DropRun(caller.number),
                "large": DropRun(caller.number, is_shared=False),
            }
            if outcome == "store":
                self.stored.setdefault(caller.key, set()).add(answer)
            if outcome == "fail":
                self.failed.add(caller.key)
            caller.worker.up.append(messages[outcome])
        caller.state = "done"

    def running(self) -> list[Caller]:
        """Return the callers of connected workers that run a request."""
        return [caller for caller in self.unfinished() if caller.state != "asks"]

    def unfinished(self) -> list[Caller]:
        callers = [caller for worker in self.workers for caller in worker.callers.values()]
        return [caller for caller in callers if caller.state not in ("done", "cancelled")]


TestOneSupervisor = OneSupervisor.TestCase
TestOneSupervisor.settings = settings(max_examples=100, stateful_step_count=60)
