"""Engine processes of a running server: found, stopped and killed by their ids; and requests while they are."""

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


def wait_at_rest(server: RunningServer, processes: int) -> None:
    """Wait until the server holds nothing of a request, and has so many engines and no other process."""
    gauges = ("inflight", "queue_depth", "sequences", "engine_shared_memory_bytes")

    def is_at_rest() -> bool:
        held = [server.sample(f"roundhouse_{name}", **_LEASED.get(name, {})) for name in gauges]
        if any(held) or len(children(server)) != processes:
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
    """Callers that send questions until the block ends. `outcomes`: (model, "right", "wrong" or the error's code)."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.stop = threading.Event()
        self.problems: list[str] = []

    def right(self, model: str) -> int:
        return self.outcomes[model, "right"]

    def wait_for_more(self, *models: str, count: int = 20) -> None:
        """Wait until each of the models has answered `count` more requests rightly."""
        before = {model: self.right(model) for model in models}
        wait_until(lambda: all(self.right(model) >= before[model] + count for model in models))

    def ask(self, client: httpx.Client, question: Question) -> None:
        answer = client.post(f"/models/{question.model}/infer", json=question.body)
        if answer.status_code == 200:
            outcome = "right" if question.check(answer.json()) else "wrong"
        else:
            outcome = answer.json()["error"]["code"]
            if outcome == "model_failed":
                assert int(answer.headers["retry-after"]) >= 1, answer.headers
        if outcome != "right":
            self.problems.append(answer.text[:500])
        self.outcomes[question.model, outcome] += 1


@contextmanager
def loaded(server: RunningServer, questions: Mapping[Question, int], pause_s: float = 0.05) -> Iterator[Load]:
    """Ask each question from so many threads, over and over. `pause_s`: of a thread between two requests.

    Without a pause the threads would take a core from the servers, and every restart would take longer.
    """
    load, count = Load(), sum(questions.values())
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_S, limits=limits, verify=False, trust_env=False) as client,
        ThreadPoolExecutor(count) as pool,
    ):

        def ask_on(question: Question) -> None:
            while not load.stop.is_set():
                load.ask(client, question)
                load.stop.wait(pause_s)

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
