"""Each request that is no inference has the same response from a worker as from a single server."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from app.auth.permissions import INFER
from app.auth.principal import Scope
from app.extension import http_access
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES
from tests.app.workers.both_ways import KEYS_FILE, BothWays, both_ways
from tests.support.keyring import make_key, write_keys
from tests.support.loops import in_loop
from tests.support.models import onnx_graphs
from tests.support.signing import signed_headers

HTTP_ACCESS = http_access()

ORIGIN = "https://pages.example"
CONFIG = f"""
[server]
cors_origins = ["{ORIGIN}"]
[models]
roots = ["."]
[auth]
mode = "off"
[[models.onnx_models]]
name = "ready"
path = "ready"
[[models.onnx_models]]
name = "lazy"
path = "ready"
load = "lazy"
"""
WITH_KEYS = (
    CONFIG.replace('mode = "off"', 'mode = "required"') + '[[auth.tenants]]\nname = "search"\nmodels = ["re*"]\n'
)
OPERATOR = make_key("default")
TENANT = make_key("search")
READER = make_key("search", Scope.READ)
SIGNED = make_key("search", is_signed=True)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# They differ from response to response of one server: the time, durations and the memory of the process.
_VARYING = frozenset({"date", "server-timing"})
_NUMBER = re.compile(r"(?<=[ :\[,])-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?\b")


async def at_once() -> None:
    """Stand in for a publisher without workers that are behind."""


Serving = Callable[..., AbstractAsyncContextManager[BothWays]]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    onnx_graphs.save(onnx_graphs.identity("float32", None), tmp_path / "ready")
    write_keys(tmp_path / KEYS_FILE, OPERATOR, TENANT, READER, SIGNED)
    return partial(both_ways, tmp_path, applied=at_once)


async def ask(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> tuple[Any, ...]:
    """Return all of a response that is the same each time: status, headers and body, without measured numbers."""
    options["headers"] = {"x-request-id": "mine", "host": "localhost", **options.get("headers", {})}
    answer = await client.request(method, path, **options)
    headers = [pair for pair in answer.headers.multi_items() if pair[0] not in _VARYING]
    assert answer.headers["server-timing"].startswith("decode;dur=")
    body = answer.content
    if "json" in answer.headers.get("content-type", "") or path == "/metrics":
        body = _NUMBER.sub("0", answer.text).encode()
        headers = [pair for pair in headers if pair[0] != "content-length"]
        body = b"\n".join(sorted(set(body.splitlines())))
    return answer.status_code, sorted(headers), body


async def ask_both(ways: BothWays, method: str, path: str, **options: Any) -> int:
    """Check that both ways have the same response; return its status."""
    direct = await ask(ways.direct, method, path, **options)
    forwarded = await ask(ways.forwarded, method, path, **options)
    assert forwarded == direct, f"{method} {path}"
    status: int = direct[0]
    return status


async def ready(ways: BothWays) -> None:
    async with asyncio.timeout(60):
        while (await ways.direct.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - as a client does
            await asyncio.sleep(0.01)


def all_paths(name: str) -> list[str]:
    values = {"{name}": name, "{version}": "1", "{rest:path}": "a/b", "{file}": "swagger-ui.css", "{adapter}": "a"}
    # A worker answers GET /events itself, and it never ends.
    others = [path for path, methods in HTTP_ACCESS.items() if INFER not in methods.values() and path != "/events"]
    return [re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], path) for path in others]


@pytest.mark.extended
@in_loop
async def test_all_routes_same_response(serving: Serving) -> None:
    statuses = set()
    async with serving(CONFIG) as ways:
        await ready(ways)
        for name in ("ready", "lazy", "unknown"):
            for path in all_paths(name):
                for method in METHODS:
                    if method == "DELETE" and path == f"/models/{name}" and name != "unknown":
                        continue
                    statuses.add(await ask_both(ways, method, path))
        for path in ("/nothing", "/models/", "/health/ready/", "/models/a%20b/load", "/docs/../openapi.json?x=1"):
            statuses.add(await ask_both(ways, "GET", path))
    assert statuses == {200, 400, 403, 404, 405, 501, 503}


@in_loop
async def test_models_registered_and_deleted_same_response(serving: Serving) -> None:
    entry = {"framework": "onnx", "name": "new", "path": "./ready"}
    async with serving(CONFIG) as ways:
        outcomes = [
            [
                await ask(client, "POST", "/models", json=entry),
                await ask(client, "POST", "/models", json=entry),
                await ask(client, "POST", "/models/new/unload", json={"version": "1", "drain_timeout_s": 1}),
                await ask(client, "POST", "/models/new/load"),
                await ask(client, "POST", "/models/new/rollback"),
                await ask(client, "DELETE", "/models/new"),
                await ask(client, "DELETE", "/models/new", content=b"{}"),
            ]
            for client in (ways.direct, ways.forwarded)
        ]
        assert outcomes[0] == outcomes[1]
        assert [status for status, *_ in outcomes[0]] == [201, 409, 200, 200, 404, 200, 404]


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (400, {"content": b"{"}),
        (400, {"content": b""}),
        (400, {"json": {"framework": "onnx", "nmae": "x"}}),
        (403, {"json": {"framework": "onnx", "name": "x", "path": "/etc"}}),
        (403, {"json": {}, "headers": {"origin": "https://elsewhere.example"}}),
        (403, {"json": {}, "headers": {"host": "elsewhere.example"}}),
        (415, {"content": b"{}", "headers": {"content-type": "text/plain"}}),
        (415, {"content": b"x" * 2 * MAX_MANAGEMENT_BYTES, "headers": {"content-type": "text/plain"}}),
        (413, {"content": b"x" * (MAX_MANAGEMENT_BYTES + 1)}),
        (400, {"content": b"x" * MAX_MANAGEMENT_BYTES}),
        (400, {"json": {}, "headers": {"origin": ORIGIN}}),
    ],
)
@in_loop
async def test_refused_registration_same_response(serving: Serving, status: int, options: dict[str, Any]) -> None:
    async with serving(CONFIG) as ways:
        assert await ask_both(ways, "POST", "/models", **options) == status


@in_loop
async def test_chunked_body_same_response(serving: Serving) -> None:
    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 1000

    async with serving(CONFIG) as ways:
        for path, count, status in (
            ("/models", 3, 400),
            ("/models", 100, 413),
            ("/models/unknown/load", 100, 404),
            ("/health", 100, 405),
        ):
            outcomes = [
                await ask(client, "POST", path, content=chunks(count)) for client in (ways.direct, ways.forwarded)
            ]
            assert outcomes[0] == outcomes[1]
            assert outcomes[0][0] == status


@in_loop
async def test_small_body_limit_same_response(serving: Serving) -> None:
    async with serving(CONFIG.replace("[server]", "[server]\nmax_body_bytes = 1024")) as ways:
        assert await ask_both(ways, "POST", "/models", content=b"x" * 2000) == 413


@in_loop
async def test_pages_of_allowed_origin_same_response(serving: Serving) -> None:
    asks = {"origin": ORIGIN, "access-control-request-method": "DELETE", "access-control-request-headers": "x-a"}
    async with serving(CONFIG) as ways:
        await ready(ways)
        assert await ask_both(ways, "OPTIONS", "/models/x", headers=asks) == 204
        assert await ask_both(ways, "OPTIONS", "/models/x", headers={**asks, "origin": "https://b.example"}) == 403
        assert await ask_both(ways, "GET", "/models", headers={"origin": ORIGIN}) == 200
        assert await ask_both(ways, "GET", "/docs/swagger-ui.css", headers={"range": "bytes=0-99"}) == 206


@in_loop
async def test_tenants_see_own_models_same_response(serving: Serving) -> None:
    async with serving(WITH_KEYS.replace('"re*"', '"lazy"')) as ways:
        assert await ask_both(ways, "GET", "/models/ready", headers=TENANT.headers) == 404
        assert await ask_both(ways, "GET", "/models", headers=TENANT.headers) == 200
        listed = (await ways.forwarded.get("/models", headers=TENANT.headers)).json()["models"]
        assert [model["name"] for model in listed] == ["lazy"]
        entry = {"framework": "onnx", "name": "new", "path": "./ready"}
        assert await ask_both(ways, "POST", "/models", json=entry, headers=TENANT.headers) == 403


@in_loop
async def test_keys_decided_in_worker_same_response(serving: Serving) -> None:
    async with serving(WITH_KEYS) as ways:
        await ready(ways)
        for headers in ({}, {"x-api-key": "rh_wrong"}, OPERATOR.headers, READER.headers, TENANT.headers):
            for method, path in (
                ("GET", "/models"),
                ("GET", "/metrics"),
                ("GET", "/health/ready"),
                ("GET", "/nothing"),
                ("POST", "/models/ready/load"),
                ("POST", "/v2/repository/index"),
            ):
                await ask_both(ways, method, path, headers=headers)


@in_loop
async def test_signed_requests_same_response(serving: Serving) -> None:
    async with serving(WITH_KEYS) as ways:
        await ready(ways)
        for client in (ways.direct, ways.forwarded):
            for method, path, body, sent, status in (
                ("GET", "/models", b"", b"", 200),
                ("POST", "/models/ready/load", b"{}", b"{}", 200),
                ("POST", "/models/ready/unload", b"{}", b'{"version": "1"}', 401),
                ("DELETE", "/models/ready", b"", b"{}", 401),
            ):
                headers = signed_headers(SIGNED.text, method, path, body)
                answer = await client.request(
                    method, path, content=sent, headers={**headers, "content-type": "application/json"}
                )
                assert answer.status_code == status, answer.text
        assert (await ways.direct.get("/models/ready", headers=READER.headers)).json()["state"] == "ready"


@in_loop
async def test_forwarded_requests_logged_once(serving: Serving) -> None:
    async with serving(WITH_KEYS) as ways:
        await ready(ways)
        lines = []
        for client in (ways.direct, ways.forwarded):
            with capture_logs() as logs:
                await client.post("/models/ready/load", headers=TENANT.headers)
                await client.post("/models/ready/load", headers=READER.headers)
                await client.post("/models/ready/load", headers=TENANT.headers, json={"x": 1})
                await client.get("/models/ready", headers=READER.headers)
                await client.get("/models/other", headers=READER.headers)
            events = [line for line in logs if line["event"] in ("request", "audit")]
            measured = {"request_id", "total_ms", "compute_ms"}
            lines.append([{key: value for key, value in line.items() if key not in measured} for line in events])
        assert lines[0] == lines[1]
        assert [line["event"] for line in lines[0]] == ["request", "audit"] * 3 + ["request"] * 2
        assert [line["code"] for line in lines[0] if line["event"] == "request"] == [
            None, "forbidden", "unknown_field", None, "model_not_found",
        ]  # fmt: skip


@in_loop
async def test_internal_error_same_response(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret of the server")

    async with serving(CONFIG) as ways:
        monkeypatch.setattr("app.admin.models.api.describe", broken)
        with capture_logs() as logs:
            assert await ask_both(ways, "GET", "/models") == 500
        errors = [line for line in logs if line["event"] == "internal error"]
        assert [line["request_id"] for line in errors] == ["mine"] * 2
