"""Roll a model out and back under 32 callers; measure failures and the longest request."""

import asyncio
import math
import time
from collections import Counter
from pathlib import Path

import orjson

from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import short_texts
from tools.bench.shared.load import Connection, request_of
from tools.bench.shared.models import write_scaled_encoder
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_CALLERS = 32
_QUIET_S = 8.0
_SWAPS = 6
_BETWEEN_S = 1.0


def measure_swaps(folder: Path, models: Path) -> list[Row]:
    """Raises unless every answer is 200."""
    for version in (1, 2):
        write_scaled_encoder(models / "minilm-onnx", folder / "swapped" / str(version), version)
    file = folder / "swaps.toml"
    file.write_text(f'[[models.onnx_models]]\nname = "m"\npath = "{folder / "swapped"}"\n', encoding="utf-8")
    with roundhouse(config=file) as server, on_cores(LOAD_CORES):
        quiet, swapped, statuses = asyncio.run(_measure(server))
    if set(statuses) != {200}:
        raise RuntimeError(f"answers while the model was swapped: {dict(statuses)}")
    p99_s = _p99(quiet)
    # Requests in progress at the switch are answered first: at most one batch of all callers.
    batch_s = sorted(quiet)[len(quiet) // 2]
    return [
        Row(
            f"hot swap and rollback under {_CALLERS} callers, {_SWAPS} times: failed requests",
            f"0 of {len(swapped):,}",
            "0",
        ),
        Row(
            "the same: the longest request",
            f"{max(swapped) * 1e3:.0f} ms",
            f"≤ {(2 * p99_s + batch_s) * 1e3:.0f} ms",
            f"p99 without swaps {p99_s * 1e3:.0f} ms, and a batch of {batch_s * 1e3:.0f} ms",
        ),
    ]


async def _measure(server: RunningServer) -> tuple[list[float], list[float], Counter[int]]:
    """Return the seconds of requests without swaps, and of those in progress during a swap."""
    took: list[tuple[float, float]] = []
    statuses: Counter[int] = Counter()
    stop = asyncio.Event()
    requests = [request_of("/models/m/infer", orjson.dumps({"text": text})) for text in short_texts(64)]

    async def call(first: int) -> None:
        connection = await Connection.to(server.port)
        at = first
        while not stop.is_set():
            started_s = time.perf_counter()
            statuses[await connection.ask(requests[at % len(requests)])] += 1
            took.append((started_s, time.perf_counter() - started_s))
            at += 1
        connection.close()

    async with asyncio.TaskGroup() as group:
        for caller in range(_CALLERS):
            group.create_task(call(caller))
        await asyncio.sleep(1)
        quiet_from_s = time.perf_counter()
        await asyncio.sleep(_QUIET_S)
        swaps_from_s = time.perf_counter()
        order = await Connection.to(server.port)
        for swap in range(_SWAPS):
            path, body = ("load", {"version": "1"}) if swap % 2 == 0 else ("rollback", {})
            if await order.ask(request_of(f"/models/m/{path}", orjson.dumps(body))) != 200:
                raise RuntimeError(f"the swap was refused: {order.body!r}")
            await asyncio.sleep(_BETWEEN_S)
        stop.set()
    order.close()
    quiet = [took_s for started_s, took_s in took if quiet_from_s <= started_s and started_s + took_s < swaps_from_s]
    return quiet, [took_s for started_s, took_s in took if started_s + took_s >= swaps_from_s], statuses


def _p99(took_s: list[float]) -> float:
    return sorted(took_s)[math.ceil(len(took_s) * 0.99) - 1]
