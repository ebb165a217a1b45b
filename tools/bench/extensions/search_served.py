"""Measure searches of a collection through the server: one caller, and several."""

import asyncio
import time
from pathlib import Path

import orjson

from frameworks.core.vector_search import Vectors
from tools.bench.extensions.search_data import BATCHES, CALLERS, DIMENSIONS, TOP_K, cpu_ratio, in_rounds
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_NAME = "bench"
_MEASURED_S = 20
_READY_LIMIT_S = 120


def measure_served(folder: Path, queries: Vectors, index_rows: int) -> list[Row]:
    """Return rows of searches by `queries` in the collection of `folder`, which no other process has open."""
    config = folder.parent / "search.toml"
    config.write_text(
        f'[[collections]]\nname = "{_NAME}"\npath = "{folder}"\ndimensions = {DIMENSIONS}\nindex_rows = {index_rows}\n'
    )
    with roundhouse(config=config) as server:
        has_index = _is_ready(server)
        return asyncio.run(_measure(server, queries, has_index))


def _is_ready(server: RunningServer) -> bool:
    """Wait until the index is built, and return whether there is one."""
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < _READY_LIMIT_S:
        server.connection.request("GET", f"/v1/collections/{_NAME}")
        state = orjson.loads(server.connection.getresponse().read())["index"]["state"]
        if state not in {"none", "building"}:
            return bool(state == "ready")
        time.sleep(0.2)
    raise RuntimeError("the collection of the server has no index in time")


async def _measure(server: RunningServer, queries: Vectors, has_index: bool) -> list[Row]:
    def requests(exact: bool) -> list[bytes]:
        bodies = (
            orjson.dumps({"query": query, "top_k": TOP_K, "exact": exact}, option=orjson.OPT_SERIALIZE_NUMPY)
            for query in queries[:CALLERS]
        )
        return [request_of(f"/v1/collections/{_NAME}/search", body) for body in bodies]

    exact, indexed = requests(True), requests(False)
    count = CALLERS * BATCHES
    ways = {
        "alone": lambda: closed_loop(server.port, exact, 1, BATCHES),
        "together": lambda: closed_loop(server.port, exact, CALLERS, count),
        "index": lambda: closed_loop(server.port, indexed, 1, count),
    }
    taken = await in_rounds(ways, _MEASURED_S, server.cpu_s)
    alone, together, index = (taken[name] for name in ways)
    alone_s, each_s, index_s = alone.usual_s / BATCHES, together.usual_s / count, index.usual_s / count
    rows = [
        Row(
            "The same exact search through the server, one caller",
            f"{alone_s * 1e3:.1f} ms, CPU {alone.usual_cpu_s / BATCHES * 1e3:.1f} ms",
        ),
        Row(
            f"{CALLERS} callers through the server",
            f"{1 / each_s:.0f}/s, {alone_s / each_s:.1f} times one caller by the clock, "
            f"{cpu_ratio(alone, together) * CALLERS:.1f} times by CPU time",
            "≥ 5 times",
            f"one caller: {1 / alone_s:.1f}/s",
        ),
    ]
    if has_index:
        rows.append(
            Row("By the index through the server, one caller", f"{index_s * 1e3:.1f} ms, {alone_s / index_s:.0f} times")
        )
    return rows
