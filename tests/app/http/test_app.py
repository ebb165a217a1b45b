"""Exceptions in any part give a 500 in the contract's form; only the log has the traceback."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from app.config import LoadedSettings, Settings
from app.inference.model_view import ModelView
from app.observability.logs.logs import configure_logging
from app.server.build import Host, build
from frameworks.core.devices import Device
from tests.support.fake_probe import FakeProbe


class Breaking(FakeProbe):
    """A device probe that raises after the start."""

    is_broken = False

    def host(self) -> Device:
        if self.is_broken:
            raise RuntimeError("secret of the server")
        return super().host()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Return the events that are logged."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def send_request(method: str, path: str, is_broken: bool = False) -> httpx.Response:
    """Send one request to a server without models in this process. `is_broken`: its device probe raises."""
    probe = Breaking()
    server = build(LoadedSettings(Settings(), Path.cwd()), "all", Host(probe))
    probe.is_broken = is_broken

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=b"{}", headers={"x-request-id": "mine"})

    return asyncio.run(call())


def check_internal_error(answer: httpx.Response, log: io.StringIO) -> None:
    assert answer.status_code == 500
    assert answer.json() == {
        "error": {
            "code": "internal",
            "message": "an error of ours; the log has it under this request id",
            "request_id": "mine",
        }
    }
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["server-timing"].startswith("decode;dur=")
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    (error,) = [event for event in events if event["level"] == "error"]
    assert (error["event"], error["request_id"]) == ("internal error", "mine")
    assert "secret of the server" in error["exception"]
    assert "Traceback" in error["exception"]
    if answer.request.url.path not in ("/health", "/metrics"):
        assert [event["status"] for event in events if event["event"] == "request"] == [500]


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_exception_in_route_is_internal_error(path: str, log: io.StringIO) -> None:
    check_internal_error(send_request("GET", path, is_broken=True), log)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/models/x/infer"), ("GET", "/models/x"), ("POST", "/models/x/unload"), ("DELETE", "/models/x")],
)
def test_exception_in_model_is_internal_error(
    method: str, path: str, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, name: str) -> None:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr(ModelView, "slot", broken)
    check_internal_error(send_request(method, path), log)


def test_websocket_is_refused() -> None:
    server = build(LoadedSettings(Settings(), Path.cwd()), "none")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        scope = {"type": "websocket", "path": "/infer", "headers": [], "query_string": b"", "scheme": "ws"}
        await server.app(scope, receive, send)

    asyncio.run(call())
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_openapi_document_is_built_once() -> None:
    server = build(LoadedSettings(Settings(), Path.cwd()), "none")
    admin: Any = server.app._admin
    application = admin._app.built()._admin  # below the page
    assert isinstance(application.openapi(), dict)
    assert application.openapi() is application.openapi()


def test_server_without_models_is_healthy() -> None:
    assert send_request("GET", "/health").json()["status"] == "healthy"
    assert send_request("GET", "/health/ready").status_code == 200
    assert send_request("GET", "/models").json() == {"models": [], "object": "list", "data": []}
