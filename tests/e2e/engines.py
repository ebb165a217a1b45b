"""Engine processes of a running server: found, stopped and killed by their ids; and requests while they are."""

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from tests.e2e.server import WAIT_S, RunningServer, wait_until

ISOLATED = '[performance]\nisolation = "process"\n'
MARK = "roundhouse-engine"


def engines(server: RunningServer) -> list[tuple[str, psutil.Process]]:
    """Return the model and the process of each engine, those that are loading included."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(server.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if MARK in words:
                    found.append((words[words.index(MARK) + 1], process))
    return found


def engine(server: RunningServer, model: str) -> psutil.Process:
    """Return the process of a model that has one."""
    [process] = [process for name, process in engines(server) if name == model]
    return process


def children(server: RunningServer) -> list[psutil.Process]:
    """Return all processes that the server has started, those that have ended and were not reaped included."""
    found: list[psutil.Process] = psutil.Process(server.process.pid).children(recursive=True)
    return found


def kill(server: RunningServer, model: str, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process of a model."""
    os.kill(engine(server, model).pid, number)


@contextmanager
def halted(server: RunningServer, model: str) -> Iterator[psutil.Process]:
    """Stop the process of a model: it answers nothing, and signals other than SIGKILL wait, until the block ends."""
    process = engine(server, model)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


def restarts(server: RunningServer, model: str, reason: str | None = None) -> float:
    """Return how many processes of a model were lost."""
    labels = {"model": model} | ({} if reason is None else {"reason": reason})
    return server.sample("roundhouse_engine_restarts_total", **labels)


def state(server: RunningServer, model: str) -> str:
    text: str = server.client.get(f"/models/{model}").json()["state"]
    return text


def wait_for_restart(server: RunningServer, model: str, before: psutil.Process) -> None:
    """Wait until a model is ready in another process than `before`."""
    wait_until(lambda: engine_or_none(server, model) not in (None, before) and state(server, model) == "ready")


def engine_or_none(server: RunningServer, model: str) -> psutil.Process | None:
    return next((process for name, process in engines(server) if name == model), None)


def wait_at_rest(server: RunningServer, processes: int, others: int = 0) -> None:
    """Wait until the server holds nothing of a request, and has so many engines and so many other processes."""
    gauges = ("inflight", "queue_depth", "buffered_bytes", "sequences", "engine_shared_memory_bytes")

    def is_at_rest() -> bool:
        held = [server.sample(f"roundhouse_{name}", **_LEASED.get(name, {})) for name in gauges]
        if any(held) or len(children(server)) != processes + others:
            return False
        return server.sample("roundhouse_engine_processes") == len(engines(server)) == processes

    wait_until(is_at_rest)
    assert server.sample("roundhouse_integrity_failures_total") == 0
    assert not [process for process in children(server) if process.status() == psutil.STATUS_ZOMBIE]


_LEASED: Mapping[str, Mapping[str, str]] = {"engine_shared_memory_bytes": {"kind": "leased"}}


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A request with its right answer. `check`: whether a body is right."""

    model: str
    body: Mapping[str, Any]
    check: Callable[[Any], bool]


class Load:
    """Callers that send questions until the block ends.

    `outcomes`: by model "right", "wrong", the code of an error, or what became of the connection: "refused", "lost",
    or "hung" after WAIT_S without a byte.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.broken: list[Exception] = []
        """Errors that have ended a caller."""

    def right(self, model: str) -> int:
        return self.outcomes[model, "right"]

    def wait_for_more(self, *models: str, count: int = 20) -> None:
        """Wait until each of the models has answered `count` more requests rightly."""
        before = {model: self.right(model) for model in models}
        self.wait_until(lambda: all(self.right(model) >= before[model] + count for model in models))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail where a caller has ended."""

        def holds() -> bool:
            assert not self.broken, self.broken
            return condition()

        wait_until(holds)

    def ask(self, client: httpx.Client, question: Question) -> None:
        try:
            answer = client.post(f"/models/{question.model}/infer", json=question.body)
        except httpx.TransportError as error:
            outcome, detail = lost_as(error), repr(error)
        else:
            outcome, detail = self._outcome(question, answer), answer.text[:500]
        if outcome != "right":
            self.problems.append(f"{question.model}, {outcome}: {detail}")
        self.outcomes[question.model, outcome] += 1

    def _outcome(self, question: Question, answer: httpx.Response) -> str:
        body = content(answer)
        if "error" not in body:
            return "right" if question.check(body) else "wrong"
        code: str = body["error"]["code"]
        if code == "model_failed" and answer.status_code != 200 and int(answer.headers.get("retry-after", 0)) < 1:
            return "model_failed without retry-after"
        return code


def lost_as(error: httpx.TransportError) -> str:
    """Return the outcome of a request whose connection failed."""
    if isinstance(error, httpx.TimeoutException):
        return "hung"
    return "refused" if isinstance(error, httpx.ConnectError) else "lost"


def content(answer: httpx.Response) -> dict[str, Any]:
    """Return the body without what differs between equal requests; of a stream the last event with the whole text."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        body = events[-1] | {"text": "".join(event.get("text", "") for event in events), "is_whole": "[DONE]" in lines}
    else:
        body = answer.json()
    return {key: value for key, value in body.items() if key not in ("latency_ms", "request_id")}


@contextmanager
def loaded(
    server: RunningServer, questions: Mapping[Question, int] | Mapping[tuple[Question, ...], int], pause_s: float = 0.05
) -> Iterator[Load]:
    """Ask each question from so many threads, over and over; those of a tuple in turn.

    `pause_s`: of a thread between two requests. Without a pause the threads would take a core from the servers, and
    every restart would take longer.
    """
    load, count = Load(), sum(questions.values())
    with ThreadPoolExecutor(count) as pool:

        def ask_on(asked: Question | tuple[Question, ...]) -> None:
            in_turn = itertools.cycle((asked,) if isinstance(asked, Question) else asked)
            try:
                with httpx.Client(base_url=server.url, timeout=WAIT_S, verify=False, trust_env=False) as client:
                    while not load.stop.is_set():
                        load.ask(client, next(in_turn))
                        load.stop.wait(pause_s)
            except Exception as error:
                load.broken.append(error)
                raise

        futures = [pool.submit(ask_on, question) for question, times in questions.items() for _ in range(times)]
        try:
            yield load
        finally:
            load.stop.set()
        for each in futures:
            each.result(WAIT_S)


def wait_ended(processes: list[psutil.Process]) -> None:
    """Wait until all processes have ended."""
    until_s = time.monotonic() + WAIT_S
    while running := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < until_s, running
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
