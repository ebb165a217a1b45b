"""Measure four models of 90 MB in the memory of two, with 16 callers in random order."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import short_texts
from tools.bench.shared.load import Connection, request_of
from tools.bench.shared.models import write_scaled_encoder
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_SECONDS = 60
_CALLERS = 16
_FACTORS = {"first": 1.0, "second": 2.0, "third": 3.0, "fourth": 4.0}
_TEXTS = short_texts(20)
_LIMIT_BYTES = 205_000_000
_SAMPLE_S = 0.01
_WITHIN = 1.15


@dataclass(slots=True)
class _Seen:
    """The answers, the highest reserved memory by the server's metric, and the highest resident memory."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    took_s: list[float] = field(default_factory=list)
    reserved_bytes: float = 0.0
    resident_bytes: int = 0


def measure_lending(folder: Path, models: Path) -> list[Row]:
    """Raises if an answer is wrong or missing."""
    config = f'[memory]\nmax_model_memory = {_LIMIT_BYTES}\n[logging]\nformat = "json"\n'
    for name, factor in _FACTORS.items():
        write_scaled_encoder(models / "minilm-onnx", folder / name, factor)
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}"\nload = "lazy"\n'
    (folder / "lending.toml").write_text(config, encoding="utf-8")
    with roundhouse(config=folder / "lending.toml") as server, on_cores(LOAD_CORES):
        lengths = [_length(server, "first", text) for text in _TEXTS]
        server.post("/models/first/unload", b"{}")
        empty_bytes = server.resident_bytes()
        server.post("/models/first/load", b"{}")
        before = _loads(server)
        seen = asyncio.run(_ask_all(server, lengths))
        loads = _loads(server) - before
    if set(seen.statuses) != {200} or seen.wrong:
        raise RuntimeError(f"answers {dict(seen.statuses)}, of which {seen.wrong} were wrong")
    share = seen.resident_bytes / (empty_bytes + _LIMIT_BYTES)
    return [
        Row(
            f"four models of 90 MB in {_LIMIT_BYTES / 1e6:.0f} MB, 16 callers in random order for {_SECONDS} s",
            f"{seen.statuses.total():,} answers, all right; {loads} loads",
            "every answer right",
            f"median {median(seen.took_s):.2f} s, longest {max(seen.took_s):.2f} s",
        ),
        Row(
            "the same: the highest that was promised, by its own metric",
            f"{seen.reserved_bytes / 1e6:.0f} MB",
            f"≤ {_LIMIT_BYTES / 1e6:.0f} MB",
        ),
        Row(
            "the same: the highest resident memory",
            f"{seen.resident_bytes / 1e6:.0f} MB",
            f"≤ {_WITHIN * (empty_bytes + _LIMIT_BYTES) / 1e6:.0f} MB",
            f"{empty_bytes / 1e6:.0f} MB without a model and the budget: {share:.2f} of them",
        ),
    ]


def _length(server: RunningServer, name: str, text: str) -> float:
    answer = server.post(f"/models/{name}/infer", orjson.dumps({"text": text, "normalize": False}))
    return float(np.linalg.norm(answer["embeddings"][0]))


async def _ask_all(server: RunningServer, lengths: list[float]) -> _Seen:
    seen = _Seen()
    until_s = time.perf_counter() + _SECONDS
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch(server, seen, until_s))
        for seed in range(_CALLERS):
            group.create_task(_ask(server.port, random.Random(seed), lengths, seen, until_s))
    return seen


async def _ask(port: int, choose: random.Random, lengths: list[float], seen: _Seen, until_s: float) -> None:
    connection = await Connection.to(port)
    while (started_s := time.perf_counter()) < until_s:
        name, at = choose.choice(list(_FACTORS)), choose.randrange(len(_TEXTS))
        body = orjson.dumps({"text": _TEXTS[at], "normalize": False})
        seen.statuses[await connection.ask(request_of(f"/models/{name}/infer", body))] += 1
        seen.took_s.append(time.perf_counter() - started_s)
        got = float(np.linalg.norm(orjson.loads(connection.body)["embeddings"][0]))
        seen.wrong += not np.isclose(got, _FACTORS[name] * lengths[at], rtol=1e-4)
    connection.close()


async def _watch(server: RunningServer, seen: _Seen, until_s: float) -> None:
    connection = await Connection.to(server.port)
    while time.perf_counter() < until_s:
        for _ in range(20):
            seen.resident_bytes = max(seen.resident_bytes, server.resident_bytes())
            await asyncio.sleep(_SAMPLE_S)
        await connection.ask(b"GET /metrics HTTP/1.1\r\nhost: bench\r\n\r\n")
        reserved = next(line for line in connection.body.decode().splitlines() if 'kind="reserved"' in line)
        seen.reserved_bytes = max(seen.reserved_bytes, float(reserved.rpartition(" ")[2]))
    connection.close()


def _loads(server: RunningServer) -> int:
    server.connection.request("GET", "/models")
    models = json.loads(server.connection.getresponse().read())["models"]
    loads = 0
    for model in models:
        server.connection.request("GET", f"/models/{model['name']}")
        details = json.loads(server.connection.getresponse().read())["version_details"]
        loads += sum(detail["loads"] for detail in details.values())
    return loads
