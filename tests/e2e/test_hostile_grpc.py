"""Messages over gRPC that cost a server the most for their size: each is refused, and other requests are answered."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from app.grpc.messages import ModelInferRequest, ModelInferResponse, PredictResponse
from app.protocols.open_inference.datatypes import MAX_STRINGS
from tests.e2e.server import WAIT_S, RunningServer, wait_until
from tests.e2e.triton_clients import grpc_channel
from tests.support import hostile_grpc
from tests.support.hostile_grpc import INFER, LOAD, METADATA, PREDICT, STREAM_INFER

SIZE = 6 * 1024 * 1024
LARGE = 3 * 1024 * 1024
"""Bytes of an answer that grpcio's client accepts by default."""
INVALID, TOO_LARGE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
NUM_STREAMS = 300
MAX_STREAMS_ON_ONE_CONNECTION = 8


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc_channel(server) as channel:
        yield channel


@contextmanager
def prober(server: RunningServer) -> Iterator[Callable[[], int]]:
    """Ask over HTTP, again 10 ms after each answer, and yield how many requests were answered; all of them must be."""
    answered, stop = [0], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            assert server.infer("float32", input_data=[1])["output_data"] == [1]
            answered[0] += 1
            stop.wait(0.01)

    with ThreadPoolExecutor(1) as one:
        probe = one.submit(ask)
        try:
            wait_until(lambda: answered[0] > 0 or probe.done())
            yield lambda: answered[0]
        finally:
            stop.set()
        probe.result(WAIT_S)


def refused(channel: grpc.Channel, path: str, message: bytes) -> tuple[grpc.StatusCode, str]:
    """Return the status of a call that must fail, and its message."""
    call: Any = channel.unary_unary(path)
    with pytest.raises(grpc.RpcError) as raised:
        call(message, timeout=WAIT_S)
    details = str(raised.value.details())
    assert len(details) < 1_000, details
    return raised.value.code(), details


@pytest.mark.parametrize("name", sorted(hostile_grpc.HOSTILE_TO_FLOAT_MODEL))
def test_hostile_message_refused_beside_other_requests(channel: grpc.Channel, server: RunningServer, name: str) -> None:
    message = hostile_grpc.HOSTILE_TO_FLOAT_MODEL[name]("float32", SIZE)
    with prober(server) as answered:
        assert refused(channel, INFER, message)[0] is INVALID
        before = answered()
        wait_until(lambda: answered() > before)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("path", "message", "code"),
    [
        (INFER, hostile_grpc.long_model_name(SIZE), INVALID),
        (METADATA, hostile_grpc.long_name_metadata(SIZE), TOO_LARGE),
        (LOAD, hostile_grpc.load_parameters("float32", SIZE), TOO_LARGE),
        (PREDICT, hostile_grpc.predict_floats("digits", SIZE, packed=False), INVALID),
        (PREDICT, hostile_grpc.predict_shape("digits", SIZE), INVALID),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="x" * SIZE), TOO_LARGE),
    ],
)
def test_hostile_message_of_other_calls_refused(
    channel: grpc.Channel, server: RunningServer, path: str, message: Any, code: grpc.StatusCode
) -> None:
    serialized = message if isinstance(message, bytes) else message.SerializeToString()
    with prober(server):
        assert refused(channel, path, serialized)[0] is code


@pytest.mark.parametrize("size", [100, 1_000, 10_000, 500_000])
@pytest.mark.parametrize(
    ("build", "code"),
    [
        (hostile_grpc.long_model_name, grpc.StatusCode.NOT_FOUND),
        (lambda size: hostile_grpc.long_input_name("float32", size), INVALID),
        (lambda size: hostile_grpc.long_output_name("float32", size), INVALID),
        (lambda size: hostile_grpc.long_output_name("float32", size, True), grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_long_names_cut_in_messages(
    channel: grpc.Channel, size: int, build: Callable[[int], bytes], code: grpc.StatusCode
) -> None:
    given, details = refused(channel, INFER, build(size))
    assert given is code
    assert "x" * min(size, 200) in details
    assert "x" * 201 not in details


def test_long_parameter_name_has_no_effect(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary(INFER, response_deserializer=ModelInferResponse.FromString)
    assert call(hostile_grpc.long_parameter_name("float32", 500_000)).outputs[0].name == "y"


def test_large_messages_answered_as_small_ones(channel: grpc.Channel, server: RunningServer) -> None:
    """Numbers in both contents, strings, and Predict; of a size that a thread decodes."""
    call: Any = channel.unary_unary(INFER, response_deserializer=ModelInferResponse.FromString)
    with prober(server):
        typed = call(hostile_grpc.typed_floats("float32", LARGE))
        assert len(typed.outputs[0].contents.fp32_contents) == LARGE // 4
        integers = call(hostile_grpc.typed_integers("int64", LARGE // 8))
        assert set(integers.outputs[0].contents.int64_contents) == {1}
        numbers = np.arange(LARGE // 4, dtype=np.float32)
        request = ModelInferRequest(model_name="float32", raw_input_contents=[numbers.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=[numbers.size])
        assert call(request.SerializeToString()).raw_output_contents[0] == numbers.tobytes()
        strings = hostile_grpc.raw_strings("string", 7 * 100_000, b"abc")
        assert call(strings).raw_output_contents[0] == b"\x03\0\0\0abc" * 100_000
        texts = call(hostile_grpc.typed_strings("string", 200_000)).outputs[0].contents.bytes_contents
        assert list(texts) == [b""] * 100_000
        predict: Any = channel.unary_unary(PREDICT, response_deserializer=PredictResponse.FromString)
        assert len(predict(hostile_grpc.predict_floats("float32", LARGE)).predictions) == LARGE // 4


def test_too_many_strings_refused(channel: grpc.Channel, server: RunningServer) -> None:
    with prober(server):
        for build in (hostile_grpc.raw_strings, hostile_grpc.typed_strings):
            code, details = refused(channel, INFER, build("string", SIZE))
            assert code is INVALID
            assert f"at most {MAX_STRINGS} strings" in details


def test_hostile_message_ends_only_its_stream(channel: grpc.Channel, server: RunningServer) -> None:
    call: Any = channel.stream_stream(STREAM_INFER)
    with prober(server), pytest.raises(grpc.RpcError) as raised:
        list(call(iter([hostile_grpc.empty_inputs("float32", SIZE)])))
    assert raised.value.code() is INVALID


def test_idle_reflections_on_one_connection_refused(channel: grpc.Channel, server: RunningServer) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    never = threading.Event()

    def ask_once() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        never.wait(WAIT_S)

    check_open_streams(server, lambda: stub.ServerReflectionInfo(ask_once()))
    never.set()


def test_watches_on_one_connection_refused(channel: grpc.Channel, server: RunningServer) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    check_open_streams(server, lambda: stub.Watch(health_pb2.HealthCheckRequest()))


def check_open_streams(server: RunningServer, open_stream: Callable[[], Any]) -> None:
    """Open many streams on one connection: all but a few must be refused. Then end them."""
    with prober(server):
        held, codes = [], []
        for _ in range(NUM_STREAMS):
            stream = open_stream()
            try:
                next(stream)
                held.append(stream)
            except grpc.RpcError as error:
                codes.append(error.code())
        assert len(held) == MAX_STREAMS_ON_ONE_CONNECTION
        assert codes == [TOO_LARGE] * (NUM_STREAMS - MAX_STREAMS_ON_ONE_CONNECTION)
        for stream in held:
            stream.cancel()

    def is_open_again() -> bool:
        stream = open_stream()
        try:
            next(stream)
        except grpc.RpcError:
            return False
        stream.cancel()
        return True

    wait_until(is_open_again)
