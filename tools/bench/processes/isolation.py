"""Measure a small model beside a large one in the same server, on one core."""

import asyncio
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import DECK, mixed_texts
from tools.bench.shared.load import Answered, closed_loop, open_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_ROUNDS = 3
_TEXTS = 2 * DECK
_CALLERS = 16
_PER_SECOND = 500
_ALONE_REQUESTS = 2 * _PER_SECOND


@dataclass(frozen=True, slots=True)
class _Figures:
    """One round of one mix; NaN for absent parts."""

    texts_per_s: float = math.nan
    small_p50_ms: float = math.nan
    small_p99_ms: float = math.nan


def measure_isolation(vector: Path, minilm: Path) -> list[Row]:
    """Measure the 16-float model at 500 requests a second while 16 callers send texts to MiniLM."""
    path = f"/models/{minilm.name}/infer"
    texts = [request_of(path, orjson.dumps({"text": text})) for text in mixed_texts()[:_TEXTS]]
    small = request_of(f"/models/{vector.stem}/infer", orjson.dumps({"input_data": [0.5] * 16}))
    with roundhouse([str(vector), str(minilm)]) as server, on_cores(LOAD_CORES):
        gc.disable()  # the load's own pauses are not the server's
        try:
            ways = {
                "small": lambda: asyncio.run(_small_alone(server, small)),
                "texts": lambda: asyncio.run(_texts_alone(server, texts)),
                "both": lambda: asyncio.run(_both(server, small, texts)),
            }
            figures = in_turn(ways, _ROUNDS)
        finally:
            gc.enable()
    p99_ms, p50_ms, alone_p99_ms = (
        median(getattr(round_, field) for round_ in figures[way])
        for way, field in (("both", "small_p99_ms"), ("both", "small_p50_ms"), ("small", "small_p99_ms"))
    )
    mixed, alone = ([round_.texts_per_s for round_ in figures[way]] for way in ("both", "texts"))
    return [
        Row(
            "16 floats at a steady 500 req/s while 16 callers send texts to MiniLM (ONNX): p99",
            f"{p99_ms:.1f} ms",
            "≤ 10 ms",
            f"its median {p50_ms:.1f} ms; p99 without the texts {alone_p99_ms:.1f} ms",
        ),
        Row(
            "the texts' throughput in that mix",
            f"{percent(ratio(mixed, alone))} of the texts alone",
            "≥ 85 %",
            f"{median(mixed):.1f} of {median(alone):.1f} texts/s",
        ),
    ]


async def _small_alone(server: RunningServer, small: bytes) -> _Figures:
    return _of_small(await open_loop(server.port, small, _PER_SECOND, lambda sent: sent < _ALONE_REQUESTS))


async def _texts_alone(server: RunningServer, texts: Sequence[bytes]) -> _Figures:
    return _Figures(texts_per_s=len(texts) / await _seconds_of(server, texts))


async def _both(server: RunningServer, small: bytes, texts: Sequence[bytes]) -> _Figures:
    """Send small requests until the texts are complete."""
    texts_task = asyncio.create_task(_seconds_of(server, texts))
    answers = await open_loop(server.port, small, _PER_SECOND, lambda _: not texts_task.done())
    of_small = _of_small(answers)
    return _Figures(len(texts) / await texts_task, of_small.small_p50_ms, of_small.small_p99_ms)


async def _seconds_of(server: RunningServer, texts: Sequence[bytes]) -> float:
    return await closed_loop(server.port, texts, _CALLERS, len(texts), warm=2 * _CALLERS)


def _of_small(answers: Sequence[Answered]) -> _Figures:
    if wrong := [answer.status for answer in answers if answer.status != 200]:
        raise RuntimeError(f"the small model answered {wrong[0]}")
    took_ms = sorted(answer.took_s * 1e3 for answer in answers)
    return _Figures(small_p50_ms=took_ms[len(took_ms) // 2], small_p99_ms=took_ms[math.ceil(len(took_ms) * 0.99) - 1])
