"""Every HTTP route and gRPC method of two workers: a signature that one has accepted is refused by the other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx

from app.auth.authenticator import Authenticator
from app.auth.key_store import KeyStore
from app.auth.permissions import EXEMPT, GRPC_ACCESS
from app.auth.principal import Scope
from app.config import AuthSettings, LoadedSettings, Settings
from app.extension import http_access
from app.grpc.authorization import CallAuthorization
from app.grpc.call import Call, Stream, StreamingCall, Unary
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.http.gate import HttpGate
from app.server.build import Host, build, build_routes
from app.workers.shared.keys import SharedNonces, WorkerNonces
from frameworks.models.replicas.control import ControlLink, Workers
from tests.app.workers.links import linked
from tests.support.fake_probe import FakeProbe
from tests.support.keyring import make_key, write_keys
from tests.support.loops import HANGS_AFTER_S, in_loop
from tests.support.signing import signed_headers

HTTP_ACCESS = http_access()

FULL = make_key("search", is_signed=True)
READER = make_key("search", Scope.READ, is_signed=True)
_PARTS = {
    "{name}": "absent", "{version}": "1", "{adapter}": "a", "{file}": "a", "{rest:path}": "a",
    "{collection}": "absent", "{id}": "a",
}  # fmt: skip


def _filled(path: str) -> str:
    for part, value in _PARTS.items():
        path = path.replace(part, value)
    return path


ROUTES = [
    (method, _filled(path))
    for path, methods in HTTP_ACCESS.items()
    for method, access in methods.items()
    if access is not EXEMPT and path != "/events"  # its response never ends
]
METHODS = [path for path, access in GRPC_ACCESS.items() if access is not EXEMPT]
STREAMS = [path for path in METHODS if path.endswith(("ModelStreamInfer", "ServerReflectionInfo"))]
REFUSED = [
    (FULL, "GET", "/absent", 404),
    (FULL, "PATCH", "/models/absent", 405),
    (FULL, "OPTIONS", "/infer", 405),
    (FULL, "HEAD", "/absent", 404),
    (READER, "POST", "/infer", 403),
    (READER, "DELETE", "/models/absent", 403),
]
REFUSED_METHODS = [
    (FULL, "/inference.GRPCInferenceService/Absent", "UNIMPLEMENTED"),
    (READER, "/inference.GRPCInferenceService/ModelInfer", "PERMISSION_DENIED"),
    (READER, "/inference.GRPCInferenceService/ModelStreamInfer", "PERMISSION_DENIED"),
]


class Worker:
    """A process without models that answers over HTTP, and over gRPC once it is started."""

    def __init__(self, keys: KeyStore, link: ControlLink) -> None:
        self._authenticator = Authenticator(keys, use_nonce=WorkerNonces(link).use)
        self.endpoint = build(LoadedSettings(Settings(), Path.cwd()), "none", Host(FakeProbe()), keys=keys).app
        self.observer = self.endpoint._pipeline.observer
        gate = self.endpoint._gate
        assert gate is not None
        self.endpoint._gate = HttpGate(self._authenticator, self.observer, build_routes(), gate._origins)
        self.link = link
        self.num_calls = 0
        """Calls over gRPC that a handler has answered."""

    async def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> httpx.Response:
        """Send a request over HTTP."""
        transport = httpx.ASGITransport(self.endpoint)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, headers=headers, content=body)

    @asynccontextmanager
    async def serving_grpc(self) -> AsyncIterator[Callable[[str, dict[str, str]], Awaitable[str]]]:
        """Yield a function that sends one empty message with metadata, and returns the status.

        grpcio's asyncio client reports INTERNAL where the server refuses a stream while it sends a message.
        """
        unary: dict[str, Unary] = {path: self._answer for path in METHODS if path not in STREAMS}
        streams: dict[str, Stream] = dict.fromkeys(STREAMS, self._answer_stream)
        gate = CallAuthorization(self._authenticator, self.observer)
        gate.with_scopes(unary, streams)
        server = GrpcServer(2**20, 16, GrpcBounds(), is_checked=True)
        address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
        await server.start(unary, streams, check=gate.check)
        options = [("grpc.use_local_subchannel_pool", 1)]
        try:
            with grpc.insecure_channel(address, options=options) as channel:

                def send(path: str, headers: dict[str, str]) -> str:
                    call: Any = channel.stream_stream(path)
                    try:
                        list(call(iter([b""]), metadata=tuple(headers.items()), timeout=HANGS_AFTER_S))
                    except grpc.RpcError as error:
                        ended: Any = error
                        return f"{ended.code().name} {ended.details()}"
                    return "OK"

                yield lambda path, headers: asyncio.to_thread(send, path, headers)
        finally:
            await server.stop(0.0)

    async def _answer(self, request: bytes, call: Call) -> bytes:
        self.num_calls += 1
        return request

    async def _answer_stream(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        self.num_calls += 1
        async for request in requests:
            await call.send(request)


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncIterator[tuple[Worker, Worker]]:
    """Yield two workers of one supervisor."""
    write_keys(folder / "keys.toml", FULL, READER)
    keys = KeyStore(folder / "keys.toml", AuthSettings(mode="required"))
    keys.load()
    workers = Workers()
    SharedNonces(workers)
    async with linked(workers) as links:
        yield Worker(keys, await links.connect(0)), Worker(keys, await links.connect(1))


def assert_replay(answer: httpx.Response) -> None:
    assert answer.status_code == 401, answer.text
    assert "www-authenticate" in answer.headers
    if answer.request.method != "HEAD":
        assert "nonce" in answer.text


@in_loop
async def test_replay_to_any_route_refused(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, other):
        for method, path in ROUTES:
            headers = signed_headers(FULL.text, method, path)
            assert (await one.send(method, path, headers)).status_code != 401, (method, path)
            before = other.observer.requests.total()
            for replayed_to in (other, one):
                assert_replay(await replayed_to.send(method, path, headers))
            assert other.observer.requests.total() == before, "no replay is run"
        assert other.observer.auth_failures == {"signature": len(ROUTES)}


@in_loop
async def test_replay_of_refused_request_refused(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, other):
        for key, method, path, status in REFUSED:
            headers = signed_headers(key.text, method, path)
            assert (await one.send(method, path, headers)).status_code == status, path
            assert_replay(await other.send(method, path, headers))


@in_loop
async def test_replay_with_other_body_refused(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, other):
        headers = signed_headers(FULL.text, "POST", "/infer", b"{}")
        answer = await one.send("POST", "/infer", headers, b"{ }")
        assert (answer.status_code, "content-digest" in answer.text) == (401, True)
        assert_replay(await other.send("POST", "/infer", headers, b"{}"))


@in_loop
async def test_concurrent_replays_answered_once(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as workers:
        headers = signed_headers(FULL.text, "GET", "/models")
        answers = await asyncio.gather(*(workers[i % 2].send("GET", "/models", headers) for i in range(16)))
    assert sorted(answer.status_code for answer in answers) == [200, *[401] * 15]


@in_loop
async def test_lost_supervisor_refuses_signed_requests(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, _):
        one.link.close()
        for key, method, path in ((FULL, "POST", "/infer"), (FULL, "GET", "/models"), (READER, "POST", "/infer")):
            answer = await one.send(method, path, signed_headers(key.text, method, path))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        async with one.serving_grpc() as call:
            for path in METHODS:
                assert (await call(path, signed_headers(FULL.text, "POST", path))).startswith("UNAVAILABLE ")
        assert one.num_calls == 0


@in_loop
async def test_replay_to_any_method_refused(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, other), AsyncExitStack() as stack:
        call_one, call_other = [await stack.enter_async_context(each.serving_grpc()) for each in (one, other)]
        for path in METHODS:
            headers = signed_headers(FULL.text, "POST", path)
            assert await call_one(path, headers) == "OK", path
            for replay_to in (call_other, call_one):
                assert "nonce" in await replay_to(path, headers), path
            assert_replay(await other.send("POST", path, headers))
        assert (one.num_calls, other.num_calls) == (len(METHODS), 0), "no replay is run"
        assert other.observer.auth_failures == {"signature": 2 * len(METHODS)}


@in_loop
async def test_replay_of_refused_call_refused(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (one, other), AsyncExitStack() as stack:
        call_one, call_other = [await stack.enter_async_context(each.serving_grpc()) for each in (one, other)]
        for key, path, status in REFUSED_METHODS:
            headers = signed_headers(key.text, "POST", path)
            assert (await call_one(path, headers)).startswith(status)
            assert (await call_other(path, headers)).startswith("UNAUTHENTICATED")
