"""Measure how two tenants that flood one model share it, and how long a third one waits."""

import asyncio
import gc
import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median

import httpx
import orjson

from app.auth.key_file import editing
from app.auth.keys import create_key
from app.auth.principal import Scope
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import mixed_texts
from tools.bench.shared.load import Connection, request_of
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_WEIGHTS = {"three": 3.0, "one": 1.0, "rare": 1.0}
_CALLERS = 32
_WARM_UP_S = 5.0
_FLOOD_S = 10.0
_ROUNDS = 3
_RARE_S = 40.0
_LONG_WORDS = 60
_SECONDS = re.compile(r'roundhouse_tenant_device_seconds_total\{model="[^"]+",tenant="([^"]+)"\} (\S+)')


@dataclass(slots=True)
class _Flood:
    """The answers of one tenant in the measured time. `batches_s`: device seconds of the batch of each answer."""

    answers: int = 0
    batches_s: list[float] = field(default_factory=list)


def measure_fairness(folder: Path, minilm: Path) -> list[Row]:
    """Measure tenants of weights 3 and 1 with 32 callers each, and a third one that sends a request a second."""
    texts = mixed_texts()
    short = [text for text in texts if text.count(" ") < _LONG_WORDS]
    long = [text for text in texts if text.count(" ") >= _LONG_WORDS]
    with _server(folder, minilm) as (server, keys), on_cores(LOAD_CORES):
        gc.disable()  # the load's own pauses are not the server's
        try:
            return [
                asyncio.run(_shares(server, keys, minilm.name, {"three": texts, "one": texts}, "of 4 to 130 words")),
                asyncio.run(_shares(server, keys, minilm.name, {"three": short, "one": long}, "short against long")),
                asyncio.run(_shares(server, keys, minilm.name, {"three": long, "one": short}, "long against short")),
                asyncio.run(_waits(server, keys, minilm.name, texts)),
            ]
        finally:
            gc.enable()


@contextmanager
def _server(folder: Path, minilm: Path) -> Iterator[tuple[RunningServer, dict[str, str]]]:
    """Start a server with a key for each tenant."""
    keys: dict[str, str] = {}
    with editing(folder / "keys.toml") as rows:
        for tenant in _WEIGHTS:
            key, keys[tenant] = create_key(tenant, frozenset({Scope.INFER, Scope.READ}), time.time())
            rows[key.key_id] = key
    tenants = "".join(f'[[auth.tenants]]\nname = "{name}"\nweight = {each}\n' for name, each in _WEIGHTS.items())
    model = f'[[models.onnx_models]]\nname = "{minilm.name}"\npath = "{minilm}"\n'
    config = folder / "fairness.toml"
    auth = f'[auth]\nmode = "required"\nkeys_file = "{folder / "keys.toml"}"\n'
    config.write_text(f'{auth}{tenants}[logging]\nrequests = "none"\n{model}', encoding="utf-8")
    with roundhouse(config=config) as server:
        yield server, keys


async def _shares(
    server: RunningServer, keys: Mapping[str, str], model: str, texts: Mapping[str, Sequence[str]], lengths: str
) -> Row:
    used: list[dict[str, float]] = []
    async with _flooded(server, keys, model, texts) as floods:
        started = {name: flood.answers for name, flood in floods.items()}
        before = _device_seconds(server, keys)
        for _ in range(_ROUNDS):
            await asyncio.sleep(_FLOOD_S)
            after = _device_seconds(server, keys)
            used.append({name: after[name] - before[name] for name in floods})
            before = after
        answers = {name: floods[name].answers - started[name] for name in floods}
    ratios = sorted(each["three"] / each["one"] for each in used)
    total = {name: sum(each[name] for each in used) for name in answers}
    return Row(
        f"two tenants of weights 3 and 1, 32 callers each, texts {lengths}: device seconds in {_FLOOD_S:.0f} s",
        f"{median(ratios):.2f} : 1",
        "3 : 1 ± 5 %",
        f"{_ROUNDS} times, {ratios[0]:.2f} to {ratios[-1]:.2f}; together {total['three'] / total['one']:.2f} : 1 for "
        f"{answers['three']} and {answers['one']} texts",
    )


async def _waits(server: RunningServer, keys: Mapping[str, str], model: str, texts: Sequence[str]) -> Row:
    """Send a short text a second beside two floods, and before them."""
    request = _requests(model, ["a short text"], keys["rare"])[0]
    alone_s = median([took_s async for took_s in _once_a_second(server.port, request, 5)])
    async with _flooded(server, keys, model, {"three": texts, "one": texts}) as floods:
        for flood in floods.values():
            flood.batches_s.clear()
        took_s = sorted([took_s async for took_s in _once_a_second(server.port, request, int(_RARE_S))])
        # Each answer names its batch's seconds: the mean over answers would count a batch once for each of its texts.
        batches_s = sorted({each for flood in floods.values() for each in flood.batches_s})
    p99_s, longest_s = took_s[math.ceil(len(took_s) * 0.99) - 1], batches_s[math.ceil(len(batches_s) * 0.99) - 1]
    return Row(
        "a third tenant sends a short text once a second beside both floods: p99",
        f"{p99_s * 1e3:.0f} ms",
        f"≤ {(2 * longest_s + alone_s) * 1e3:.0f} ms, two batches and its time alone",
        f"its median {median(took_s) * 1e3:.0f} ms, alone {alone_s * 1e3:.1f} ms; batches: median "
        f"{median(batches_s) * 1e3:.0f} ms, p99 {longest_s * 1e3:.0f} ms",
    )


@asynccontextmanager
async def _flooded(
    server: RunningServer, keys: Mapping[str, str], model: str, texts: Mapping[str, Sequence[str]]
) -> AsyncIterator[dict[str, _Flood]]:
    """Run the floods of these tenants, warmed up, in the block."""
    floods = {name: _Flood() for name in texts}
    async with asyncio.TaskGroup() as group:
        requests = {name: cycle(_requests(model, own, keys[name])) for name, own in texts.items()}
        tasks = [
            group.create_task(_flood(await Connection.to(server.port), requests[name], floods[name]))
            for name in texts
            for _ in range(_CALLERS)
        ]
        await asyncio.sleep(_WARM_UP_S)
        yield floods
        for task in tasks:
            task.cancel()


async def _flood(connection: Connection, coming: Iterator[bytes], flood: _Flood) -> None:
    try:
        while True:
            await _ask(connection, next(coming))
            flood.answers += 1
            compute = re.search(r"compute;dur=([0-9.]+)", connection.answer.headers["server-timing"])
            assert compute is not None, "an answer has its timings"
            flood.batches_s.append(float(compute[1]) / 1e3)
    finally:
        connection.close()


async def _once_a_second(port: int, request: bytes, count: int) -> AsyncIterator[float]:
    connection = await Connection.to(port)
    for _ in range(count):
        started_s = time.perf_counter()
        await _ask(connection, request)
        took_s = time.perf_counter() - started_s
        yield took_s
        await asyncio.sleep(max(0.0, 1.0 - took_s))
    connection.close()


async def _ask(connection: Connection, request: bytes) -> None:
    status = await connection.ask(request)
    if status != 200:
        raise RuntimeError(f"a request was answered {status}: {connection.body[:200]!r}")


def _requests(model: str, texts: Sequence[str], key: str) -> list[bytes]:
    path = f"/models/{model}/infer"
    return [request_of(path, orjson.dumps({"text": text}), key) for text in texts]


def _device_seconds(server: RunningServer, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the device seconds of each tenant, which only its own key shows."""
    pages = [
        httpx.get(f"http://127.0.0.1:{server.port}/metrics", headers={"authorization": f"Bearer {key}"}).text
        for key in keys.values()
    ]
    return {tenant: float(seconds) for page in pages for tenant, seconds in _SECONDS.findall(page)}
