"""Measure the server CPU of a signed request beside one with a key, and the rate at which bodies are hashed."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from statistics import median

import orjson

from app.auth.digests import parse_digest
from app.auth.key_file import format_keys
from app.auth.key_store import StoredKey
from app.auth.keys import Key, hash_secret, key_text
from app.auth.principal import Principal, Scope
from app.auth.signatures import SignedRequest
from app.auth.verifier import SignatureVerifier
from frameworks.core.tenants import DEFAULT_TENANT
from tests.support.signing import content_digest, signed_headers
from tools.bench.shared import wrk
from tools.bench.shared.rounds import in_turn
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

# Many short ones: the CPU time of a request varies by 30 % from one round to the next.
_ROUNDS = 41
_SECONDS = 1
_HASH_ROUNDS = 5
_CONNECTIONS = 32
# More than a server answers in a round.
_MAX_PER_SECOND = 25_000
_BATCHES = 20
_BATCH = 500
_HASHED_BYTES = 64 * 1024**2
_SECRET = "s" * 43
_PLAIN, _SIGNED = "plainplain12", "signedsigned"
_PATH = "/models/vector/infer"
_BODY = orjson.dumps({"input_data": [0.5] * 16})


def measure_signatures(vector: Path) -> list[Row]:
    """Return the rows of the 16-float model at 32 connections, and of the digest of a long body."""
    return [*_request_rows(vector), _verify_row(), _digest_row()]


def _request_rows(vector: Path) -> Iterator[Row]:
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        yield Row("a signature: server CPU a request", "-", "≤ 25 µs", wrk.MISSING)
        return
    with tempfile.TemporaryDirectory() as folder:
        keys_file = Path(folder) / "keys.toml"
        digest = hash_secret(_SECRET.encode())
        keys = [
            Key(name, "default", frozenset(Scope), digest, 0.0, is_signed=name == _SIGNED) for name in (_PLAIN, _SIGNED)
        ]
        keys_file.write_text(format_keys(keys), encoding="utf-8")
        settings = {"ROUNDHOUSE_AUTH__MODE": "required", "ROUNDHOUSE_AUTH__KEYS_FILE": str(keys_file)}
        with roundhouse([str(vector)], environment=settings) as server:
            loads = in_turn(
                {
                    "key": lambda: _press(server, lambda: {"x-api-key": key_text(_PLAIN, _SECRET)}),
                    "signature": lambda: _press(
                        server, lambda: signed_headers(key_text(_SIGNED, _SECRET), "POST", _PATH, _BODY)
                    ),
                },
                _ROUNDS,
            )
    cpu_us = {name: median(load.cpu_us for load in each) for name, each in loads.items()}
    yield Row(
        f"a signature in place of a key, {_CONNECTIONS} connections: server CPU a request",
        f"{cpu_us['signature'] - cpu_us['key']:+.1f} µs",
        "≤ 25 µs",
        f"{cpu_us['signature']:.1f} µs with it, {cpu_us['key']:.1f} µs with a key",
    )


def _press(server: RunningServer, make_headers: Callable[[], dict[str, str]]) -> wrk.Load:
    """Send requests with headers of their own, over all connections, each after its last answer."""
    requests = []
    for _ in range(_MAX_PER_SECOND * _SECONDS):
        lines = {
            "host": f"127.0.0.1:{server.port}",
            "content-type": "application/json",
            "content-length": str(len(_BODY)),
            **make_headers(),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        requests.append(f"POST {_PATH} HTTP/1.1\r\n{head}\r\n".encode() + _BODY)
    return wrk.press_each(server, requests, _CONNECTIONS, _SECONDS)


def _verify_row() -> Row:
    """Without a server: the least time of a batch, which other work on the machine does not change."""
    digest = hash_secret(_SECRET.encode())
    key = Key(_SIGNED, "default", frozenset(Scope), digest, 0.0, is_signed=True)
    verifier = SignatureVerifier({_SIGNED: StoredKey(key, Principal(DEFAULT_TENANT))}.get)
    fastest_s = inf
    for _ in range(_BATCHES):
        requests = [_signed_request() for _ in range(_BATCH)]
        started_s = time.process_time()
        for request in requests:
            verifier.verify(request).digest.check(_BODY)
        fastest_s = min(fastest_s, time.process_time() - started_s)
    return Row(
        "one signature and the digest of 100 bytes, verified alone", f"{fastest_s / _BATCH * 1e6:.1f} µs", "≤ 25 µs"
    )


def _signed_request() -> SignedRequest:
    signed = signed_headers(key_text(_SIGNED, _SECRET), "POST", _PATH, _BODY)
    headers = [(name.encode(), value.encode()) for name, value in signed.items()]
    return SignedRequest(b"POST", _PATH.encode(), b"", headers)


def _digest_row() -> Row:
    body = bytes(_HASHED_BYTES)
    rates = {}
    for algorithm in ("sha-256", "sha-512"):
        digest = parse_digest(content_digest(body, algorithm).encode())
        seconds = []
        for _ in range(_HASH_ROUNDS):
            started_s = time.process_time()
            digest.check(body)
            seconds.append(time.process_time() - started_s)
        rates[algorithm] = _HASHED_BYTES / min(seconds) / 1e9
    return Row(
        "content-digest of 64 MiB, sha-256",
        f"{rates['sha-256']:.2f} GB/s",
        "≥ 1 GB/s",
        f"sha-512 {rates['sha-512']:.2f} GB/s",
    )
