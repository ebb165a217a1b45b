"""Runs over gRPC against servers on loopback that answer late, wrongly or not at all."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

from app.grpc.messages import ModelInferRequest, ModelInferResponse, ModelMetadataResponse, ModelStreamInferResponse
from extensions.load_test import grpc_calls
from extensions.load_test.connection import address_of
from extensions.load_test.grpc_calls import CallWriter, GrpcClient, find_grpc_target
from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.inputs.grpc_messages import INFER, METADATA, STREAM_INFER, infer_request
from extensions.load_test.run import LoadPlan, LoadRun
from extensions.load_test.target import LoadTarget, NoTarget

Handlers = dict[str, Any]


async def served(handlers: Handlers, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work(port)` against a server with these handlers by the path of their method."""

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            return handlers.get(details.method)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await work(port)
    finally:
        await server.stop(0)


def unary(answer: Callable[[bytes, Any], Awaitable[bytes]]) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer)


def streaming(*responses: bytes) -> Handlers:
    async def answer(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for _request in requests:
            for response in responses:
                yield response

    return {STREAM_INFER: grpc.stream_stream_rpc_method_handler(answer)}


def run_of(plan: LoadPlan, port: int, path: str = INFER) -> LoadRun:
    address = address_of(f"http://127.0.0.1:{port}", None)
    writer = CallWriter(address, lambda *_: {"x-api-key": "k"}, is_signed=False)
    target = LoadTarget(address, "grpc", "m", path, {}, "protobuf")
    return LoadRun(plan, GrpcClient(target, writer, plan.timeout_s), [RequestContent(b"", headers=())])


def closed_loop(requests: int | None, **more: Any) -> LoadPlan:
    return LoadPlan(rate=None, concurrency=2, requests=requests, **{"duration_s": None, **more})


def gone(plan: LoadPlan, handlers: Handlers, path: str = INFER) -> LoadRun:
    """Return a run that has ended."""
    runs = []

    async def work(port: int) -> None:
        runs.append(run_of(plan, port, path))
        await runs[0].go()

    asyncio.run(served(handlers, work))
    return runs[0]


def infer_handler(response: bytes = b"") -> Handlers:
    async def answer(_: bytes, call: Any) -> bytes:
        assert ("x-api-key", "k") in call.invocation_metadata()
        assert 0 < call.time_remaining() < 120
        return response

    return {INFER: unary(answer)}


def refusing(code: grpc.StatusCode) -> Handlers:
    async def answer(_: bytes, call: Any) -> bytes:
        await call.abort(code, "no")
        raise AssertionError

    return {INFER: unary(answer)}


def piece(text: str, **parameters: bool) -> bytes:
    response = ModelInferResponse(model_name="m")
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    encoded = text.encode()
    response.raw_output_contents.append(struct.pack("<I", len(encoded)) + encoded)
    for name, value in parameters.items():
        response.parameters[name].bool_param = value
    content: bytes = ModelStreamInferResponse(infer_response=response).SerializeToString()
    return content


@pytest.mark.parametrize(
    "plan",
    [closed_loop(25), LoadPlan(rate=2000, concurrency=None, duration_s=None, requests=25, connections=3)],
    ids=["closed", "open"],
)
def test_run_sends_exactly_the_calls(plan: LoadPlan) -> None:
    run = gone(plan, infer_handler())
    assert (run.sent, run.tally.succeeded, run.tally.failed, run.ended_by) == (25, 25, 0, "requests")
    assert 1 <= run.connections.opened <= 3


@pytest.mark.parametrize("name", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED"])
def test_refused_call_has_status_code(name: str) -> None:
    code = grpc.StatusCode[name]
    run = gone(closed_loop(3), refusing(code))
    assert run.tally.failures == {(code.value[0], name): 3}
    assert run.connections.closed_by_server == 0


def test_late_call_is_a_timeout() -> None:
    async def hang(*_: Any) -> bytes:
        await asyncio.sleep(3600)
        raise AssertionError

    run = gone(closed_loop(2, timeout_s=0.2), {INFER: unary(hang)})
    assert run.tally.failures == {(0, "timeout"): 2}


def test_too_large_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_calls._CHANNEL_OPTIONS) | {"grpc.max_receive_message_length": 1000}
    monkeypatch.setattr(grpc_calls, "_CHANNEL_OPTIONS", tuple(options.items()))
    run = gone(closed_loop(2), infer_handler(b"x" * 1001))
    assert run.tally.failures == {(0, "response_too_large"): 2}


def test_stream_has_first_token_and_pieces() -> None:
    pieces = piece("a"), piece(""), piece("b"), piece("c", triton_final_response=True)
    run = gone(closed_loop(4), streaming(*pieces), STREAM_INFER)
    assert (run.tally.succeeded, run.tally.tokens, run.tally.first_token.count) == (4, 12, 4)


@pytest.mark.parametrize(
    ("responses", "failure"),
    [
        ([], (0, "incomplete_stream")),
        ([b"\xff"], (0, "invalid_stream")),
        ([ModelStreamInferResponse(error_message="no").SerializeToString()], (0, "error_event")),
        ([piece("x" * 600), piece("x" * 600)], (0, "response_too_large")),
    ],
)
def test_wrong_stream_is_a_failure(
    responses: list[bytes], failure: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_calls, "MAX_BODY_BYTES", 1000)
    run = gone(closed_loop(2), streaming(*responses), STREAM_INFER)
    assert run.tally.failures == {failure: 2}


def test_closed_connection_is_opened_again() -> None:
    clients: list[asyncio.StreamWriter] = []
    forwards: list[asyncio.Task[None] | None] = []

    async def cut_first(*_: Any) -> bytes:
        if len(clients) == 1:
            clients[0].transport.abort()
            await asyncio.sleep(3600)
        return b""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def work(port: int) -> None:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.append(writer)
            forwards.append(asyncio.current_task())
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

        proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
        run = run_of(LoadPlan(rate=None, concurrency=1, duration_s=None, requests=5), proxy.sockets[0].getsockname()[1])
        await run.go()
        assert (run.tally.failures, run.tally.succeeded) == ({(0, "connection_closed"): 1}, 4)
        assert (run.connections.opened, run.connections.closed_by_server) == (2, 1)
        proxy.close()
        await asyncio.gather(*filter(None, forwards))

    asyncio.run(served({INFER: unary(cut_first)}, work))


def test_dead_server_is_asked_with_delays() -> None:
    async def work() -> None:
        dead = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        unused = dead.sockets[0].getsockname()[1]
        dead.close()
        run = run_of(LoadPlan(rate=None, concurrency=4, duration_s=0.5), unused)
        await run.go()
        assert run.tally.failures.keys() == {(0, "connection_failed")}
        # Delays of 50, 100, 200 and 400 ms, after which all four try again.
        assert 4 <= run.connections.failed <= 20

    asyncio.run(work())


def test_interrupt_ends_with_result_so_far() -> None:
    async def work(port: int) -> None:
        run = run_of(LoadPlan(rate=None, concurrency=1, duration_s=None), port)
        going = asyncio.create_task(run.go())
        await received.wait()
        run.interrupt()
        await going
        assert (run.tally.succeeded, run.unanswered, run.ended_by) == (1, 1, "interrupt")

    async def answer_one(*_: Any) -> bytes:
        if calls:
            received.set()
            await asyncio.sleep(3600)
        calls.append(1)
        return b""

    calls: list[int] = []
    received = asyncio.Event()
    asyncio.run(served({INFER: unary(answer_one)}, work))


def found_target(metadata: bytes | grpc.StatusCode, is_streamed: bool = True) -> LoadTarget:
    targets = []

    async def answer(_: bytes, call: Any) -> bytes:
        if isinstance(metadata, grpc.StatusCode):
            await call.abort(metadata, "\x1b[2J no")
            raise AssertionError
        return metadata

    async def work(port: int) -> None:
        writer = CallWriter(address_of(f"http://127.0.0.1:{port}", None), lambda *_: {}, is_signed=False)
        targets.append(await find_grpc_target(writer, "m", is_streamed, 60))

    asyncio.run(served({METADATA: unary(answer)}, work))
    return targets[0]


@pytest.mark.parametrize(
    ("name", "is_streamed", "path"),
    [("x", True, INFER), ("text_input", True, STREAM_INFER), ("text_input", False, INFER)],
)
def test_description_comes_from_metadata(name: str, is_streamed: bool, path: str) -> None:
    message = ModelMetadataResponse(name="m")
    message.inputs.add(name=name, datatype="BYTES", shape=[-1, 2])
    target = found_target(message.SerializeToString(), is_streamed)
    assert (target.path, target.encoding) == (path, "protobuf")
    assert target.description["inputs"] == [{"name": name, "datatype": "BYTES", "shape": [-1, 2]}]


@pytest.mark.parametrize(
    ("metadata", "message"), [(grpc.StatusCode.NOT_FOUND, r"got NOT_FOUND \?\[2J no"), (b"\xff", "another message")]
)
def test_missing_description_is_refused(metadata: bytes | grpc.StatusCode, message: str) -> None:
    with pytest.raises(NoTarget, match=message):
        found_target(metadata)


def test_message_has_fields_of_json() -> None:
    request = {
        "id": "7",
        "model_version": "2",
        "parameters": {"a": True, "b": 3, "c": 0.5, "d": "x"},
        "inputs": [{"name": "x", "datatype": "INT16", "shape": [2], "data": [1, -2], "parameters": {"p": 1}}],
        "outputs": [{"name": "y", "parameters": {"classification": 2}}],
    }
    message = ModelInferRequest.FromString(infer_request(request, "m"))
    assert (message.model_name, message.model_version, message.id) == ("m", "2", "7")
    values = [getattr(message.parameters[name], f"{kind}_param") for name, kind in zip("abcd", KINDS, strict=True)]
    assert values == [True, 3, 0.5, "x"]
    assert (message.inputs[0].shape, message.raw_input_contents[0]) == ([2], b"\x01\x00\xfe\xff")
    assert message.outputs[0].parameters["classification"].int64_param == 2


KINDS = ("bool", "int64", "double", "string")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "input: expected one of"),
        ({"id": 7}, "id: expected a string"),
        ({"outputs": [7]}, "outputs: expected a list"),
        ({"parameters": {"a": 2**63}}, r"parameters\.a: expected a number"),
        ({"parameters": []}, "parameters: expected an object"),
        ({"inputs": []}, "inputs: expected a list"),
    ],
)
def test_invalid_message_is_refused(change: dict[str, Any], message: str) -> None:
    request = {"inputs": [{"name": "x", "datatype": "INT16", "shape": [1], "data": [1]}]}
    with pytest.raises(ValueError, match=message):
        infer_request(request | change, "m")
