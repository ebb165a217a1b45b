"""Forwarded requests whose client, worker or supervisor ends, that wait for the workers, or that are too many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from app.auth.permissions import HttpAccess
from app.http.listener.clocks import ConnectionBounds
from app.workers import forwarding
from app.workers.forwarding import AdminServer
from tests.app.workers.both_ways import Links, forwarding_to
from tests.support.loops import HANGS_AFTER_S, in_loop, settle, soon, task

ORDER = "/models/m/load"
READ = "/metrics"
LARGE_BYTES = 20 * 1024 * 1024


class Gated:
    """An application whose responses wait for `open`, and then for all workers."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.workers_behind = asyncio.Event()
        self.workers_behind.set()
        self.running: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.done: list[str] = []
        self.cancelled: list[str] = []
        self.waiting_for_workers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.running.append(path)
        self.headers += scope["headers"]
        try:
            await self.open.wait()
            self.done.append(path)
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise
        finally:
            self.running.remove(path)
        body = b"x" * LARGE_BYTES if path == "/docs" else path.encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        for start in range(0, len(body), 1024 * 1024):
            part = body[start : start + 1024 * 1024]
            await send({"type": "http.response.body", "body": part, "more_body": start + len(part) < len(body)})

    async def applied(self) -> None:
        self.waiting_for_workers += 1
        try:
            await self.workers_behind.wait()
        finally:
            self.waiting_for_workers -= 1


@asynccontextmanager
async def gated(
    folder: Path, bounds: ConnectionBounds | None = None
) -> AsyncIterator[tuple[Gated, Links, httpx.AsyncClient]]:
    app = Gated()
    async with (
        AdminServer(app, HttpAccess(), app.applied) as served,
        forwarding_to(served, folder, bounds) as (links, url),
        httpx.AsyncClient(
            base_url=url, timeout=HANGS_AFTER_S, trust_env=False, limits=httpx.Limits(max_connections=None)
        ) as client,
    ):
        yield app, links, client


@in_loop
async def test_large_page_arrives_whole(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        app.open.set()
        assert (await client.get("/docs")).content == b"x" * LARGE_BYTES
        head = await client.head("/docs")
        assert (head.headers["content-length"], head.content) == (str(LARGE_BYTES), b"")


@in_loop
async def test_keys_stay_in_worker(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        app.open.set()
        await client.get(READ, headers={"authorization": "Bearer rh_a", "x-api-key": "rh_b", "x-other": "kept"})
        assert (b"x-other", b"kept") in app.headers
        assert not {b"authorization", b"x-api-key"} & {name for name, _ in app.headers}


@in_loop
async def test_slow_body_is_refused_by_worker(tmp_path: Path) -> None:
    async with gated(tmp_path, ConnectionBounds(body_timeout_s=0.01)) as (app, _, client):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(f"POST {ORDER} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(), HANGS_AFTER_S)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"server.body_timeout_s" in answer
        assert app.headers == []
        writer.close()


@in_loop
async def test_client_gone_within_body_is_499(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(f"POST {ORDER} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode())
            await writer.drain()
            writer.close()
            await soon(lambda: any(line["event"] == "audit" for line in logs))
        assert [line["status"] for line in logs] == [499] * 2
        assert app.headers == []


@in_loop
async def test_answer_waits_for_all_workers(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        app.open.set()
        app.workers_behind.clear()
        asked = [task(client.post(ORDER)), task(client.get(READ)), task(client.get("/health/ready"))]
        await soon(lambda: app.waiting_for_workers == len(asked))
        assert not any(each.done() for each in asked)
        app.workers_behind.set()
        assert [(await each).status_code for each in asked] == [200] * 3


@in_loop
async def test_liveness_needs_no_supervisor(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, links, client):
        for _ in range(2):
            assert (await client.get("/health/live")).json() == {"status": "live"}
            assert (await client.get("/v2/health/live/")).json() == {"live": True}
            assert (await client.head("/health/live")).status_code == 200
            links.supervisor.close()
            await links.worker.lost
        assert not app.done


@in_loop
async def test_lost_supervisor_is_503_on_kept_connection(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, links, client):
        asked = [task(client.get(READ)), task(client.post(ORDER, json={}))]
        await soon(lambda: sorted(app.running) == [READ, ORDER])
        links.supervisor.close()
        for answer in [await each for each in asked] + [await client.get(READ), await client.get("/v2")]:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "the server: expected its main process to answer" in answer.text
            assert answer.headers["x-request-id"]
            assert "connection" not in answer.headers
        assert (await client.get("/health/live")).status_code == 200


async def send_and_disconnect(client: httpx.AsyncClient, app: Gated, method: str, path: str) -> None:
    """Send a request, and close its connection when the supervisor works on it."""
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
    await soon(lambda: path in app.running)
    writer.close()
    await writer.wait_closed()


@in_loop
async def test_disconnected_client_ends_read(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        with capture_logs() as logs:
            await send_and_disconnect(client, app, "GET", READ)
            await soon(lambda: app.cancelled == [READ])
            await send_and_disconnect(client, app, "GET", "/models/m")
            await soon(lambda: any(line["event"] == "request" for line in logs))
        (line,) = [line for line in logs if line["event"] == "request"]
        assert (line["path"], line["status"], line["code"]) == ("/models/m", 499, "client_gone")


@in_loop
async def test_disconnected_client_keeps_order(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        with capture_logs() as logs:
            await send_and_disconnect(client, app, "POST", ORDER)
            await settle()
            app.open.set()
            await soon(lambda: any(line["event"] == "audit" for line in logs))
        assert (app.done, app.cancelled) == ([ORDER], [])


@in_loop
async def test_lost_worker_ends_reads_and_keeps_orders(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, links, client):
        asked = [task(client.get(READ)), task(client.post(ORDER))]
        await soon(lambda: sorted(app.running) == [READ, ORDER])
        links.worker.close()
        await soon(lambda: app.cancelled == [READ])
        await settle()
        assert app.running == [ORDER]
        app.open.set()
        await soon(lambda: app.done == [ORDER])
        assert [(await each).status_code for each in asked] == [503] * 2


@in_loop
async def test_withdrawn_order_is_cancelled(tmp_path: Path) -> None:
    """As at the end of the drain timeout, when the worker cancels its requests."""
    async with gated(tmp_path) as (app, _, client):
        asked = task(client.post(ORDER))
        await soon(lambda: app.running == [ORDER])
        (question,) = [each for each in asyncio.all_tasks() if "run_asgi" in repr(each)]
        question.cancel()
        await soon(lambda: app.cancelled == [ORDER])
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


@in_loop
async def test_end_of_server_cancels_orders(tmp_path: Path) -> None:
    app = Gated()
    async with AdminServer(app, HttpAccess(), app.applied) as served, forwarding_to(served, tmp_path) as (links, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANGS_AFTER_S) as client:
            asked = task(client.post(ORDER))
            await soon(lambda: app.running == [ORDER])
            links.worker.close()
            assert (await asked).status_code == 503
        assert app.running == [ORDER]
    assert (app.running, app.cancelled) == ([], [ORDER])


@in_loop
async def test_flood_of_reads_delays_no_other_request(tmp_path: Path) -> None:
    async with gated(tmp_path) as (app, _, client):
        reads = [task(client.get(READ)) for _ in range(100)]
        await soon(lambda: len(app.running) == forwarding._READS_AT_ONCE)
        others = [task(client.get("/health/ready")), task(client.get("/v2/health/ready")), task(client.post(ORDER))]
        await soon(lambda: len(app.running) == forwarding._READS_AT_ONCE + len(others))
        assert app.running.count(READ) == forwarding._READS_AT_ONCE
        app.open.set()
        assert {(await each).status_code for each in reads + others} == {200}
        assert app.done.count(READ) == 100


@in_loop
async def test_requests_above_bound_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MAX_CALLS", 3)
    async with gated(tmp_path) as (app, _, client):
        asked = [task(client.post(ORDER)) for _ in range(3)]
        await soon(lambda: len(app.running) == 3)
        refused = await client.get(READ)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        probe = task(client.get("/health/ready"))
        await soon(lambda: len(app.running) == 4)
        app.open.set()
        assert {(await each).status_code for each in [*asked, probe]} == {200}
        assert (await client.get(READ)).status_code == 200


@in_loop
async def test_page_above_frame_is_internal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frameworks.core.channel.channel._MAX_MESSAGE_BYTES", LARGE_BYTES)
    async with gated(tmp_path) as (app, _, client):
        app.open.set()
        assert (await client.get("/docs")).status_code == 500
        assert (await client.get(READ)).status_code == 200


@in_loop
async def test_application_without_response_is_internal_error(tmp_path: Path) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret of the server")

    async def at_once() -> None:
        pass

    async with (
        AdminServer(broken, HttpAccess(), at_once) as served,
        forwarding_to(served, tmp_path) as (_, url),
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        answer: Any = (await client.get(READ)).json()
    assert answer["error"]["code"] == "internal"
    assert "secret" not in str(answer)
