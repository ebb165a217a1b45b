"""End the process of a model under load: its callers, those of another model, and the time until it serves again."""

import asyncio
import gc
import math
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import orjson

from tools.bench.processes.engine_configs import Entry, engine_of, write_config
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.load import Connection, request_of
from tools.bench.shared.rounds import ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 5
_CALLERS = 32
_PAUSE_S = 0.05
_SECONDS = 8.0
_KILL_AFTER_S = 2.0
_VICTIM, _OTHER = "victim", "other"


@dataclass(slots=True)
class _Answers:
    """The answers of all callers of one model in a window, in the order of their ends (time.perf_counter)."""

    ended_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def p99_s(self) -> float:
        return sorted(self.took_s)[math.ceil(len(self.took_s) * 0.99) - 1]


@dataclass(frozen=True, slots=True)
class _Crash:
    """One round. `load_s`: of a load by an order. `outage_s`: from the signal to the next answer after the gap."""

    failed: int
    answered: int
    load_s: float
    outage_s: float
    p99_s: float
    quiet_p99_s: float


def measure_engine_crashes(folder: Path, vector: Path) -> list[Row]:
    """Send SIGSEGV to the process of a model with 32 callers, beside 32 callers of a model in the server."""
    config = write_config(folder / "crashes.toml", [Entry(_VICTIM, vector, isolated=True), Entry(_OTHER, vector)])
    # A server each: the second crash within a minute is followed by a longer wait.
    rounds = [_crash(config) for _ in range(_ROUNDS)]
    loads_s, outages_s = median(each.load_s for each in rounds), median(each.outage_s for each in rounds)
    p99s, quiet_p99s = [each.p99_s for each in rounds], [each.quiet_p99_s for each in rounds]
    return [
        Row(
            f"SIGSEGV to the process of a model with {_CALLERS} callers: requests for tensors that failed",
            f"{sum(each.failed for each in rounds)} of {sum(each.answered for each in rounds):,}",
            "0",
            f"{_ROUNDS} times",
        ),
        Row(
            f"the same: p99 of {_CALLERS} callers of another model in the {_SECONDS:.0f} s around it",
            f"{ratio(p99s, quiet_p99s):.2f} times without it",
            "≤ 1.2 times",
            f"{median(p99s) * 1e3:.2f} against {median(quiet_p99s) * 1e3:.2f} ms",
        ),
        Row(
            "the same: until it answers again",
            f"{outages_s:.2f} s",
            f"≤ {loads_s + 1.5:.2f} s, load time and 1.5 s",
            f"load time {loads_s:.2f} s; the longest {max(each.outage_s for each in rounds):.2f} s",
        ),
    ]


def _crash(config: Path) -> _Crash:
    with roundhouse(config=config) as server, on_cores(LOAD_CORES):
        server.post(f"/models/{_VICTIM}/unload", b"")
        started_s = time.perf_counter()
        server.post(f"/models/{_VICTIM}/load", b"")
        load_s = time.perf_counter() - started_s
        gc.disable()  # the load's own pauses are not the server's
        try:
            return asyncio.run(_around(server, load_s))
        finally:
            gc.enable()


async def _around(server: RunningServer, load_s: float) -> _Crash:
    await _window(server, kills=False, seconds=1.0)
    quiet, _, _ = await _window(server, kills=False)
    other, victim, killed_s = await _window(server, kills=True)
    outage_s = max(
        (after - before, after - killed_s)
        for before, after in zip(victim.ended_s, victim.ended_s[1:], strict=False)
        if after > killed_s
    )[1]
    failed = victim.failed + other.failed
    return _Crash(failed, len(victim.ended_s), load_s, outage_s, other.p99_s, quiet.p99_s)


async def _window(server: RunningServer, kills: bool, seconds: float = _SECONDS) -> tuple[_Answers, _Answers, float]:
    """Return the answers of the other model and of the victim, and when the signal was sent."""
    other, victim = _Answers(), _Answers()
    engine = engine_of(server, _VICTIM)
    until_s = time.perf_counter() + seconds
    killed_s = math.inf
    async with asyncio.TaskGroup() as group:
        for seed in range(_CALLERS):
            group.create_task(_ask_on(server, _OTHER, other, until_s, seed))
            group.create_task(_ask_on(server, _VICTIM, victim, until_s, _CALLERS + seed))
        if kills:
            await asyncio.sleep(_KILL_AFTER_S)
            killed_s = time.perf_counter()
            engine.send_signal(signal.SIGSEGV)
    return other, victim, killed_s


async def _ask_on(server: RunningServer, model: str, answers: _Answers, until_s: float, seed: int) -> None:
    """Send requests with random pauses, so that those of the load do not form a queue."""
    request = request_of(f"/models/{model}/infer", orjson.dumps({"input_data": [0.5] * 16}))
    choose = random.Random(seed)
    connection = await Connection.to(server.port)
    while True:
        await asyncio.sleep(choose.uniform(0.5, 1.5) * _PAUSE_S)
        if time.perf_counter() >= until_s:
            break
        sent_s = time.perf_counter()
        status = await connection.ask(request)
        answers.failed += status != 200
        answers.ended_s.append(time.perf_counter())
        answers.took_s.append(answers.ended_s[-1] - sent_s)
    connection.close()
