"""Measure the server CPU of a key, with few keys and many, and send requests that no key allows."""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from math import inf
from pathlib import Path
from statistics import median

import orjson

from app.auth.authenticator import Authenticator
from app.auth.key_store import KeyStore
from app.config import AuthSettings
from app.http.gate import HttpGate
from app.http.origins import OriginPolicy, OriginRules
from app.observability.metrics import Observer
from app.server.build import build_routes
from tests.app.http.requests import http_request
from tests.support.hostile_keys import Keys, Outcome, fuzz_grpc, fuzz_http
from tests.support.keyring import MadeKey, make_key, write_keys
from tools.bench.shared import wrk
from tools.bench.shared.rounds import in_turn
from tools.bench.shared.servers import RunningServer, free_port, roundhouse, started
from tools.bench.shared.table import Row

# Many short ones: the CPU time of a request varies by 30 % from one round to the next.
_ROUNDS = 41
_SECONDS = 1
_CONNECTIONS = 32
# More than a server answers in a round.
_MAX_PER_SECOND = 30_000
_MANY_KEYS, _MANY_TENANTS = 10_000, 100
_BATCHES = 20
_BATCH = 2_000
_HTTP_REQUESTS, _GRPC_CALLS = 90_000, 10_000
_PATH = "/models/vector/infer"
_BODY = orjson.dumps({"input_data": [0.5] * 16})


def measure_keys(vector: Path) -> list[Row]:
    """Return the rows of the 16-float model at 32 connections, and of the check alone."""
    many = [make_key(f"tenant-{number % _MANY_TENANTS}") for number in range(_MANY_KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        return [*_request_rows(vector, many, Path(folder)), _check_row(many, Path(folder))]


def _request_rows(vector: Path, many: list[MadeKey], folder: Path) -> list[Row]:
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("a key: server CPU a request", "-", "≤ 5 µs", wrk.MISSING)]
    one = make_key("default")
    file = folder / "many.toml"
    write_keys(file, one, *many)
    ways: dict[str, Sequence[MadeKey | None]] = {"off": [None], "one": [one], "many": many}
    command = [sys.executable, "-m", "tools.bench.requests.keyed_server", str(vector), "--port", "{port}"]
    with started(command, "/health/ready", environment=_settings(file)) as server:
        presses = {
            name: partial(_press, server, name != "off", [_request(server, key) for key in keys])
            for name, keys in ways.items()
        }
        for press in presses.values():
            press()
        loads = in_turn(presses, _ROUNDS)
    return [
        _key_row("a key", "one", loads),
        _key_row(f"one of {_MANY_KEYS:,} keys of {_MANY_TENANTS} tenants", "many", loads),
    ]


def _key_row(what: str, name: str, loads: dict[str, list[wrk.Load]]) -> Row:
    cpu_us = {each: median(load.cpu_us for load in loads[each]) for each in (name, "off")}
    return Row(
        f"{what}, {_CONNECTIONS} connections: server CPU a request",
        f"{cpu_us[name] - cpu_us['off']:+.1f} µs",
        "≤ 5 µs",
        f"{cpu_us[name]:.1f} µs with it, {cpu_us['off']:.1f} µs by the same process without the check",
    )


def _settings(file: Path) -> dict[str, str]:
    return {"ROUNDHOUSE_AUTH__MODE": "required", "ROUNDHOUSE_AUTH__KEYS_FILE": str(file)}


def _request(server: RunningServer, key: MadeKey | None) -> bytes:
    lines = {
        "host": f"127.0.0.1:{server.port}",
        "content-type": "application/json",
        "content-length": str(len(_BODY)),
        **({} if key is None else key.headers),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {_PATH} HTTP/1.1\r\n{head}\r\n".encode() + _BODY


def _press(server: RunningServer, is_checked: bool, requests: list[bytes]) -> wrk.Load:
    server.process.send_signal(signal.SIGUSR2 if is_checked else signal.SIGUSR1)
    return wrk.press_each(server, islice(cycle(requests), _MAX_PER_SECOND * _SECONDS), _CONNECTIONS, _SECONDS)


def _check_row(many: list[MadeKey], folder: Path) -> Row:
    """Without a server: the least time of a batch, which other work on the machine does not change."""
    store = KeyStore(folder / "many.toml", AuthSettings(mode="required"))
    write_keys(folder / "many.toml", *many)
    store.load()
    gate = HttpGate(Authenticator(store), Observer("none", 1000), build_routes(), OriginPolicy(OriginRules()))
    heads = [
        [(b"host", b"localhost"), (b"authorization", key.headers["authorization"].encode())] for key in many[:_BATCH]
    ]
    scopes = [{"method": "POST", "path": _PATH, "query_string": b"", "headers": head} for head in heads]
    fastest_s = inf
    for _ in range(_BATCHES):
        records = [http_request(*head, path=_PATH) for head in heads]
        started_s = time.process_time()
        refusals = [gate.check(scope, record) for scope, record in zip(scopes, records, strict=True)]
        fastest_s = min(fastest_s, time.process_time() - started_s)
        assert refusals == [None] * _BATCH
    return Row(f"one of {_MANY_KEYS:,} keys, checked alone", f"{fastest_s / _BATCH * 1e6:.1f} µs", "≤ 5 µs")


def measure_refusals(vector: Path) -> list[Row]:
    """Return how many of 100,000 requests without a right were answered, except health checks."""
    keys, grpc_port = Keys(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        write_keys(file, *keys.in_file)
        environment = {**_settings(file), "ROUNDHOUSE_SERVER__GRPC_PORT": str(grpc_port)}
        environment["ROUNDHOUSE_LOGGING__REQUESTS"] = "none"
        with roundhouse([str(vector)], environment=environment) as server:
            outcomes = [
                asyncio.run(fuzz_http(server.port, keys, _HTTP_REQUESTS, seed=1)),
                asyncio.run(fuzz_grpc(grpc_port, keys, _GRPC_CALLS, seed=1)),
            ]
    return [_refusals_row(outcomes)]


def _refusals_row(outcomes: list[Outcome]) -> Row:
    statuses = outcomes[0].statuses + outcomes[1].statuses
    for allowed in [each for outcome in outcomes for each in outcome.allowed][:10]:
        print(f"not refused: {allowed}", file=sys.stderr)
    return Row(
        "random requests without, with wrong, revoked, expired, cut and replayed credentials: answered",
        f"{sum(len(outcome.allowed) for outcome in outcomes)} of {statuses.total():,}",
        "0",
        ", ".join(f"{status}: {count:,}" for status, count in statuses.most_common()),
    )
