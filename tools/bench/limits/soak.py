"""Send minutes of mixed requests to a tiny Llama, with cancellations; check every text and the freed resources.

BENCH_SOAK_SECONDS is the duration; default 300.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import orjson

from tools.bench.limits.soak_requests import Asked, Texts, questions, texts_of, with_answers
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.load import Connection
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_DEFAULT_SECONDS = 300.0
_CALLERS = 24
_QUESTIONS = 96
# Keys and values of some 500 tokens for a dozen texts: preemptions are frequent.
_KV_CACHE = "256KiB"
_MAX_SEQUENCES = 12
_WATCH_S = 6.0  # the server looks for leaks every five seconds
_SAMPLE_S = 0.5
_STATES = ("running", "waiting")


@dataclass(slots=True)
class _Seen:
    """The ends of the requests; `differing`: those with another text than alone."""

    ends: Counter[str] = field(default_factory=Counter)
    differing: list[Asked] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)

    def compare(self, asked: Asked, is_right: bool, end: str) -> None:
        self.ends[end] += 1
        if not is_right:
            self.differing.append(asked)


def measure_soak(folder: Path) -> list[Row]:
    """Raises if a request gets an unexpected error."""
    from tests.support.models.causal_folders import save_causal_model

    seconds = float(os.environ.get("BENCH_SOAK_SECONDS", _DEFAULT_SECONDS))
    model = save_causal_model(folder / "soak")
    config = folder / "soak.toml"
    config.write_text(
        f'[[models.torch_models]]\nname = "llama"\npath = "{model}"\ndtype = "f32"\ndevice = "cpu"\n'
        f'kv_cache_bytes = "{_KV_CACHE}"\nmax_batch_size = {_MAX_SEQUENCES}\n',
        encoding="utf-8",
    )
    with roundhouse(config=config) as server, on_cores(LOAD_CORES):
        seen = asyncio.run(_soak(server, seconds))
        time.sleep(_WATCH_S)
        figures = _figures(server)
    return _rows(seen, figures, seconds)


async def _soak(server: RunningServer, seconds: float) -> _Seen:
    asked = await with_answers(server.port, questions(_QUESTIONS))
    seen = _Seen()
    until_s = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for seed in range(_CALLERS):
            group.create_task(_call(server.port, random.Random(seed), asked, seen, until_s))
        group.create_task(_watch(server, seen, until_s))
    return seen


async def _watch(server: RunningServer, seen: _Seen, until_s: float) -> None:
    while time.perf_counter() < until_s:
        seen.resident_bytes.append(server.resident_bytes())
        await asyncio.sleep(_SAMPLE_S)


async def _call(port: int, choose: random.Random, asked: list[Asked], seen: _Seen, until_s: float) -> None:
    ways: list[Callable[[int, random.Random, Asked, _Seen], object]] = [_whole, _stream, _leave, _leave_whole, _hurry]
    while time.perf_counter() < until_s:
        way = choose.choices(ways, weights=(4, 4, 2, 1, 1))[0]
        await way(port, choose, choose.choice(asked), seen)  # type: ignore[misc]


async def _whole(port: int, choose: random.Random, asked: Asked, seen: _Seen) -> None:
    connection = await Connection.to(port)
    status = await connection.ask(asked.request(priority=choose.randint(1, 9)))
    connection.close()
    if status != 200:
        raise RuntimeError(f"{asked.fields} was answered {status}: {connection.body[:300]!r}")
    seen.compare(asked, texts_of(connection.body) == asked.texts, "whole")


async def _stream(port: int, choose: random.Random, asked: Asked, seen: _Seen) -> None:
    texts = await _read_stream(port, asked, pieces=None)
    seen.compare(asked, texts == asked.texts, "streamed")


async def _leave(port: int, choose: random.Random, asked: Asked, seen: _Seen) -> None:
    """Read some pieces, then close the connection."""
    texts = await _read_stream(port, asked, choose.randint(0, 20))
    is_right = all(alone.startswith(text) for (text, _), (alone, _) in zip(texts, asked.texts, strict=True))
    seen.compare(asked, is_right, "cancelled in a stream")


async def _leave_whole(port: int, choose: random.Random, asked: Asked, seen: _Seen) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked.request())
    await asyncio.sleep(choose.uniform(0, 0.1))
    writer.close()
    seen.ends["cancelled before the answer"] += 1


async def _hurry(port: int, choose: random.Random, asked: Asked, seen: _Seen) -> None:
    """Send a request with a deadline that many do not meet."""
    connection = await Connection.to(port)
    status = await connection.ask(asked.request(timeout_ms=choose.randint(1, 400)))
    connection.close()
    if status not in (200, 504):
        raise RuntimeError(f"{asked.fields} was answered {status}: {connection.body[:300]!r}")
    is_right = status == 504 or texts_of(connection.body) == asked.texts
    seen.compare(asked, is_right, "in time" if status == 200 else "too late")


async def _read_stream(port: int, asked: Asked, pieces: int | None) -> Texts:
    """Return the text of each choice after this number of pieces; None: all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    texts, reasons = [""] * len(asked.texts), [""] * len(asked.texts)
    try:
        writer.write(asked.request(stream=True))
        head = await reader.readuntil(b"\r\n\r\n")
        if int(head[9:12]) != 200:
            raise RuntimeError(f"{asked.fields} was answered {head[9:12].decode()}")
        read = 0
        while pieces is None or read < pieces:
            line = await reader.readline()
            if line == b"data: [DONE]\n":
                break
            if not line.startswith(b"data: "):
                continue  # the body's chunks, and the lines between events
            event = orjson.loads(line[6:])
            texts[event["index"]] += event["text"]
            reasons[event["index"]] = event.get("finish_reason", "")
            read += 1
    finally:
        writer.close()
    return tuple(zip(texts, reasons, strict=True))


def _figures(server: RunningServer) -> dict[str, float]:
    """Return every sample of /metrics by its name and labels."""
    server.connection.close()
    server.connection.request("GET", "/metrics")
    page = server.connection.getresponse().read().decode()
    return {name: float(value) for name, value in re.findall(r"^(roundhouse_\S+) (\S+)$", page, re.MULTILINE)}


def _rows(seen: _Seen, figures: dict[str, float], seconds: float) -> list[Row]:
    what = f"{_CALLERS} mixed callers on a tiny Llama for {seconds:.0f} s"
    running, waiting = (figures[f'roundhouse_sequences{{model="llama",state="{state}"}}'] for state in _STATES)
    used_bytes = figures['roundhouse_kv_cache_bytes{kind="used",model="llama"}']
    tokens = figures['roundhouse_tokens_generated_total{model="llama"}']
    preemptions = figures['roundhouse_preemptions_total{model="llama"}']
    quarter = len(seen.resident_bytes) // 4
    before = median(seen.resident_bytes[quarter : 2 * quarter])
    after = median(seen.resident_bytes[-quarter:])
    return [
        Row(
            f"{what}: texts that differ from those generated alone",
            f"{len(seen.differing)} of {seen.ends.total():,}",
            "0",
            "; ".join(f"{end} {count:,}" for end, count in sorted(seen.ends.items())),
        ),
        Row(
            "the same, at the end: texts that run, that wait, bytes of keys and values in use, leaks found",
            f"{running:.0f}, {waiting:.0f}, {used_bytes:.0f}, {figures['roundhouse_integrity_failures_total']:.0f}",
            "0, 0, 0, 0",
            f"{tokens:,.0f} tokens; {preemptions:,.0f} preemptions",
        ),
        Row(
            "the same: resident memory of the last quarter against the second",
            f"{after / before:.3f} times",
            "≤ 1.05 times",
            f"{before / 1e6:.0f} and {after / 1e6:.0f} MB",
        ),
    ]
