"""Measure time to first token beside sixteen running texts, and their regularity beside long prompts."""

import asyncio
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tools.bench.shared.language_models import CONTEXT_TOKENS, LARGE, LONGEST_PROMPT, mixed_prompts, prompt, save_llama
from tools.bench.shared.servers import RunningServer
from tools.bench.shared.streaming import Streamed, completion, stream
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import serving

_STREAMS = 16
_PROBES = 12
_PROBE_TOKENS = (10, 80, 150)
_LONG_PROMPT_TOKENS = 1000
_BEFORE_S = 10.0
_SECONDS = 60.0
_STREAM_TOKENS = CONTEXT_TOKENS - LONGEST_PROMPT


@dataclass(slots=True)
class Running:
    """Streams that restart at their ends until they are stopped. `request_of`: the request of a text."""

    port: int
    request_of: Callable[[str], bytes]
    all: list[Streamed] = field(default_factory=list)
    is_stopped: bool = False

    async def keep_one(self, text: str) -> None:
        while not self.is_stopped:
            streamed = Streamed()
            self.all.append(streamed)
            await stream(self.port, self.request_of(text), streamed, lambda: not self.is_stopped)

    def gaps_s(self, from_s: float) -> list[float]:
        """Return the gaps of all streams in rising order, without those that end before `from_s`."""
        gaps = (zip(each.pieces_s[1:], each.gaps_s, strict=True) for each in self.all if each.pieces_s)
        return sorted(gap_s for of_stream in gaps for at_s, gap_s in of_stream if at_s - gap_s >= from_s)


def measure_streams(folder: Path) -> list[Row]:
    """Measure the large Llama in fp32 on all cores, shared with the load."""
    model = save_llama(folder / "streams", LARGE)
    with serving(folder, model) as server:
        gc.disable()  # the load's own pauses are not the server's
        try:
            return asyncio.run(_rows(server))
        finally:
            gc.enable()


async def _rows(server: RunningServer) -> list[Row]:
    running = Running(server.port, lambda text: completion("llama", text, _STREAM_TOKENS, stream=True))
    async with asyncio.TaskGroup() as group:
        for text in mixed_prompts(_STREAMS, 0):
            group.create_task(running.keep_one(text))
        await asyncio.sleep(_BEFORE_S)
        if sum(bool(each.pieces_s) for each in running.all) != _STREAMS:
            raise RuntimeError(f"after {_BEFORE_S:.0f} s not all streams have begun")
        rows = [await _first_token_row(running, length) for length in _PROBE_TOKENS]
        rows += await _long_prompt_rows(running)
        running.is_stopped = True
    return rows


async def _first_token_row(running: Running, length: int) -> Row:
    """Send short prompts one after another, with short pauses."""
    choose = random.Random(length)
    from_s = time.perf_counter()
    firsts_s = []
    for _ in range(_PROBES):
        await asyncio.sleep(choose.uniform(0.1, 0.4))  # at any moment of a step
        probe = Streamed()
        request = completion("llama", prompt(length, choose), 2, stream=True)
        await stream(running.port, request, probe)
        firsts_s.append(probe.first_s)
    step_s = median(running.gaps_s(from_s))
    times = sorted(first_s / step_s for first_s in firsts_s)
    return Row(
        f"{LARGE.label}, {_STREAMS} streams run: time to first token of a prompt of {length} tokens",
        f"{median(times):.1f} step times",
        "≤ 3 step times" if length == _PROBE_TOKENS[0] else "-",
        f"the longest of {_PROBES}: {times[-1]:.1f}; {median(firsts_s) * 1e3:.0f} ms; a step {step_s * 1e3:.0f} ms",
    )


async def _long_prompt_rows(running: Running) -> list[Row]:
    quiet_from_s = time.perf_counter()
    await asyncio.sleep(_SECONDS / 4)
    quiet_s = running.gaps_s(quiet_from_s)
    from_s = time.perf_counter()
    firsts_s = await _ask_long(running.port, lambda: time.perf_counter() - from_s < _SECONDS)
    gaps_s = running.gaps_s(from_s)
    return [
        Row(
            f"the same, while prompts of {_LONG_PROMPT_TOKENS:,} tokens keep arriving: inter-token p99",
            f"{percentile(gaps_s, 0.99) / median(gaps_s):.2f} times the median",
            "≤ 2 times",
            f"median {median(gaps_s) * 1e3:.0f} ms, p99 {percentile(gaps_s, 0.99) * 1e3:.0f} ms, longest "
            f"{gaps_s[-1] * 1e3:.0f} ms; without them {median(quiet_s) * 1e3:.0f} ms and "
            f"{percentile(quiet_s, 0.99) * 1e3:.0f} ms",
        ),
        Row(
            f"the same: time to first token of the prompts of {_LONG_PROMPT_TOKENS:,} tokens",
            f"{median(firsts_s):.2f} s",
            "-",
            f"{len(firsts_s)} in {_SECONDS:.0f} s, one after another",
        ),
    ]


async def _ask_long(port: int, goes_on: Callable[[], bool]) -> list[float]:
    """Return their times to first token."""
    choose = random.Random(1)
    firsts_s = []
    for _ in itertools.takewhile(lambda _: goes_on(), itertools.count()):
        probe = Streamed()
        await stream(port, completion("llama", prompt(_LONG_PROMPT_TOKENS, choose), 1, stream=True), probe)
        firsts_s.append(probe.first_s)
    return firsts_s


def percentile(rising: Sequence[float], share: float) -> float:
    """Return a percentile of values in rising order."""
    return rising[math.ceil(len(rising) * share) - 1]
