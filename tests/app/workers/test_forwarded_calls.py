"""Each call over gRPC that is no inference has the same outcome from a worker as from a single server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from app.admin.open_inference.management import Management
from app.admin.views import Views
from app.auth.authenticator import Authenticator
from app.auth.principal import Scope
from app.config.loading import load_settings
from app.grpc import messages
from app.grpc.authorization import CallAuthorization
from app.grpc.management import REQUESTS, Answer, ManagementCalls, management_methods
from app.grpc.messages import INFERENCE_SERVICE, Message
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.inference.bounds import Bounds
from app.inference.lifecycle import ServerLifecycle
from app.inference.model_view import ManagedModelView
from app.inference.pipeline import Pipeline
from app.observability.metrics import Observer, RequestRecord
from app.server.keys import open_keys
from app.server.manager import build_manager
from app.workers import forwarded_calls
from app.workers.forwarded_calls import CallServer, ForwardedCalls
from frameworks.core.devices import DeviceManager
from frameworks.models.replicas.control import ControlLink
from frameworks.scheduling.admission import RequestLimit
from memory.tensor_pool import TensorPool
from tests.support.control_links import open_links
from tests.support.fake_probe import FakeProbe
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task
from tests.support.models import onnx_graphs

OPERATOR = make_key("default")
READER = make_key("default", Scope.READ)
NARROW = make_key("default", models=("other*",))
CONFIG = """
[auth]
mode = "required"
[[models.onnx_models]]
name = "ready"
path = "ready"
[[models.onnx_models]]
name = "lazy"
path = "ready"
load = "lazy"
"""
LARGE = "x" * 70_000


class Client:
    """Calls one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def call(self, method: str, /, key: MadeKey = OPERATOR, **fields: Any) -> Any:
        """Return the outcome of a call: the response, or the code and the text of the error."""
        path = f"/{INFERENCE_SERVICE}/{method}"
        return await self.send(path, REQUESTS[path](**fields).SerializeToString(), key)

    async def send(self, path: str, request: bytes, key: MadeKey = OPERATOR) -> Any:
        method: Any = self._channel.unary_unary(path)
        metadata = (*key.metadata, ("x-request-id", "mine"))
        try:
            response = await method(request, metadata=metadata, timeout=HANGS_AFTER_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()
        return getattr(messages, path.rpartition("/")[2] + "Response").FromString(response)


class Gate:
    """Stands in for the publisher: answers wait while it is closed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def applied(self) -> None:
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1


class BothWays:
    """The clients of a single server and of a worker, and the ends of the worker's connection."""

    def __init__(self, direct: Client, forwarded: Client, links: tuple[ControlLink, ControlLink], gate: Gate) -> None:
        self.direct = direct
        self.forwarded = forwarded
        self.links = links
        self.gate = gate

    async def outcome(self, method: str, /, **fields: Any) -> Any:
        """Check that both have the same outcome, and return it."""
        direct, forwarded = [await client.call(method, **fields) for client in (self.direct, self.forwarded)]
        assert forwarded == direct
        return direct


Serving = Callable[[], AbstractAsyncContextManager[BothWays]]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    onnx_graphs.save(onnx_graphs.identity("float32", None), tmp_path / "ready")
    write_keys(tmp_path / "keys.toml", OPERATOR, READER, NARROW)
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    return partial(both_ways, tmp_path)


@asynccontextmanager
async def both_ways(folder: Path) -> AsyncIterator[BothWays]:
    loaded = load_settings(folder / "config.toml", {})
    observer, nothing, gate = Observer("all", 1000), _nothing(), Gate()
    authenticator = Authenticator(open_keys(loaded, api_key=""))
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(
            build_manager(loaded, DeviceManager(FakeProbe()), TensorPool(loaded.settings.memory))
        )
        await manager.load("ready")
        lifecycle = ServerLifecycle(manager, ("ready",))
        bounds = Bounds(RequestLimit("the server", None, None), 1000, None)
        pipeline = Pipeline(manager, nothing, nothing, observer, lifecycle, bounds)
        calls = ManagementCalls(Management(pipeline, lifecycle), Views(partial(ManagedModelView, manager), observer))
        supervisor, worker = await open_links()
        stack.callback(supervisor.close)
        stack.callback(worker.close)
        CallServer(calls.answer, gate.applied).serve(supervisor)
        clients = [
            await stack.enter_async_context(_serving(answer, observer, authenticator))
            for answer in (calls.answer, ForwardedCalls(worker).answer)
        ]
        yield BothWays(clients[0], clients[1], (supervisor, worker), gate)


def _nothing() -> Any:
    return None


@asynccontextmanager
async def _serving(answer: Answer, observer: Observer, authenticator: Authenticator) -> AsyncIterator[Client]:
    """Serve the methods over a socket."""
    server = GrpcServer(2**20, 64, GrpcBounds(), is_checked=True)
    port = server.bind("127.0.0.1", 0)
    methods = management_methods(answer, observer)
    gate = CallAuthorization(authenticator, observer)
    gate.with_scopes(methods, {})
    await server.start(methods, {}, check=gate.check)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield Client(channel)
    finally:
        await server.stop(0.0)


@in_loop
async def test_all_methods_same_outcome(serving: Serving) -> None:
    async with serving() as ways:
        assert (await ways.outcome("ServerLive")).live
        assert (await ways.outcome("ServerReady")).ready
        assert (await ways.outcome("ServerMetadata")).name == "roundhouse"
        for name in ("ready", "lazy", "unknown", ""):
            for version in ("", "1", "7"):
                await ways.outcome("ModelReady", name=name, version=version)
                await ways.outcome("ModelStatistics", name=name, version=version)
                if name != "lazy":
                    await ways.outcome("ModelMetadata", name=name, version=version)
                    await ways.outcome("ModelConfig", name=name, version=version)
        assert len((await ways.outcome("RepositoryIndex")).models) == 2
        assert len((await ways.outcome("RepositoryIndex", ready=True)).models) == 2
        assert (await ways.outcome("ModelReady", name="ready")).ready


@in_loop
async def test_orders_have_same_outcome(serving: Serving) -> None:
    async with serving() as ways:
        for client, other in ((ways.direct, ways.forwarded), (ways.forwarded, ways.direct)):
            assert await client.call("RepositoryModelUnload", model_name="ready") == (
                messages.RepositoryModelUnloadResponse()
            )
            assert not (await other.call("ModelReady", name="ready")).ready
            assert (await client.call("ModelMetadata", name="ready"))[0] == "UNAVAILABLE"
            assert await client.call("RepositoryModelLoad", model_name="ready") == (
                messages.RepositoryModelLoadResponse()
            )
            assert (await other.call("ModelReady", name="ready")).ready
        config = {"config": {"string_param": "{}"}}
        outcome = await ways.outcome("RepositoryModelLoad", model_name="ready", parameters=config)
        assert outcome[0] == "UNIMPLEMENTED"
        drain = {"drain_timeout_s": {"string_param": "soon"}}
        outcome = await ways.outcome("RepositoryModelUnload", model_name="ready", parameters=drain)
        assert outcome[0] == "INVALID_ARGUMENT"
        assert (await ways.outcome("RepositoryModelLoad", model_name="unknown"))[0] == "NOT_FOUND"
        assert (await ways.outcome("RepositoryModelLoad", model_name=LARGE))[0] == "RESOURCE_EXHAUSTED"


@in_loop
async def test_never_loaded_model_is_described(serving: Serving) -> None:
    async with serving() as ways:
        assert (await ways.forwarded.call("ModelMetadata", name="lazy")).name == "lazy"
        assert (await ways.outcome("ModelConfig", name="lazy")).config.name == "lazy"


@in_loop
async def test_damaged_message_same_outcome(serving: Serving) -> None:
    async with serving() as ways:
        path = f"/{INFERENCE_SERVICE}/ModelReady"
        outcomes = [await client.send(path, b"\xff\xff") for client in (ways.direct, ways.forwarded)]
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][0] == "INVALID_ARGUMENT"


@in_loop
async def test_keys_of_callers_same_outcome(serving: Serving) -> None:
    async with serving() as ways:
        assert (await ways.outcome("RepositoryModelLoad", key=READER, model_name="ready"))[0] == "PERMISSION_DENIED"
        assert (await ways.outcome("ModelMetadata", key=NARROW, name="ready"))[0] == "NOT_FOUND"
        assert not (await ways.outcome("RepositoryIndex", key=NARROW)).models
        assert (await ways.outcome("ModelMetadata", key=READER, name="ready")).name == "ready"


@in_loop
async def test_forwarded_calls_logged_once(serving: Serving) -> None:
    async with serving() as ways:
        lines = []
        for client in (ways.direct, ways.forwarded):
            with capture_logs() as logs:
                await client.call("RepositoryModelLoad", model_name="ready")
                await client.call("RepositoryModelLoad", model_name="unknown")
                await client.call("ModelReady", name="ready")
            events = [line for line in logs if line["event"] in ("request", "audit")]
            lines.append([{k: v for k, v in line.items() if k not in ("total_ms", "compute_ms")} for line in events])
        assert lines[0] == lines[1]
        assert [(line["event"], line["status"]) for line in lines[0]] == [
            ("request", 200), ("audit", 200), ("request", 404), ("audit", 404), ("request", 200),
        ]  # fmt: skip


@in_loop
async def test_internal_error_same_outcome(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr(Management, "model_statistics", broken)
    async with serving() as ways:
        with capture_logs() as logs:
            code, text = await ways.outcome("ModelStatistics")
        assert code == "INTERNAL"
        assert "secret" not in text
        assert [line["request_id"] for line in logs if line["event"] == "internal error"] == ["mine"] * 2


@in_loop
async def test_call_waits_for_all_workers(serving: Serving) -> None:
    async with serving() as ways:
        ways.gate.open.clear()
        asked = task(ways.forwarded.call("RepositoryModelLoad", model_name="ready"))
        await soon(lambda: ways.gate.waiting == 1)
        assert not asked.done()
        assert (await ways.forwarded.call("ServerLive")).live
        ways.gate.open.set()
        assert await asked == messages.RepositoryModelLoadResponse()


@in_loop
async def test_cancelled_call_is_withdrawn(serving: Serving) -> None:
    async with serving() as ways:
        ways.gate.open.clear()
        asked = task(ways.forwarded.call("RepositoryIndex"))
        await soon(lambda: ways.gate.waiting == 1)
        asked.cancel()
        await soon(lambda: ways.gate.waiting == 0)


@in_loop
async def test_lost_supervisor_is_unavailable(serving: Serving) -> None:
    async with serving() as ways:
        ways.gate.open.clear()
        asked = task(ways.forwarded.call("RepositoryIndex"))
        await soon(lambda: ways.gate.waiting == 1)
        ways.links[0].close()
        for code, text in (await asked, await ways.forwarded.call("ServerReady")):
            assert code == "UNAVAILABLE"
            assert text.startswith("the server: expected its main process to answer")
        assert (await ways.forwarded.call("ServerLive")).live


@in_loop
async def test_calls_above_bound_are_refused(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarded_calls, "MAX_CALLS", 2)
    async with serving() as ways:
        ways.gate.open.clear()
        asked = [task(ways.forwarded.call("RepositoryIndex")) for _ in range(2)]
        await soon(lambda: ways.gate.waiting == 2)
        assert (await ways.forwarded.call("RepositoryIndex"))[0] == "RESOURCE_EXHAUSTED"
        ways.gate.open.set()
        assert [len((await each).models) for each in asked] == [2, 2]
        assert len((await ways.forwarded.call("RepositoryIndex")).models) == 2


@in_loop
async def test_forwarded_message_keeps_all_fields() -> None:
    """Also fields that only a newer client knows."""
    received: list[tuple[bytes, str]] = []

    async def answer(request: Message, record: RequestRecord) -> bytes:
        received.append((request.SerializeToString(), record.path))
        return b"response"

    async def at_once() -> None:
        pass

    supervisor, worker = await open_links()
    CallServer(answer, at_once).serve(supervisor)
    path = f"/{INFERENCE_SERVICE}/ModelReady"
    serialized = messages.ModelReadyRequest(name="m").SerializeToString() + b"\xba\x3e\x01x"
    record = RequestRecord("mine", "gRPC", path, 0.0)
    request = messages.ModelReadyRequest.FromString(serialized)
    assert await ForwardedCalls(worker).answer(request, record) == b"response"
    assert received == [(serialized, path)]
    worker.close()
    supervisor.close()
