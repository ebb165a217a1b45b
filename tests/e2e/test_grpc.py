"""gRPC over a real socket, by Triton's own clients and by grpcio: the responses and errors of REST."""

import queue
import signal
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from app.grpc.messages import PredictRequest, PredictResponse
from app.protocols.open_inference.datatypes import DATATYPES
from frameworks.types import NUMPY_DTYPES
from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.gates import RunGate
from tests.e2e.load import slow_model, wait_for_done, wait_for_drain, wait_for_inflight
from tests.e2e.server import GRPC_PORT, MODELS, WAIT_S, RunningServer, free_port, serving, wait_until
from tests.e2e.triton_clients import GRPC_KINDS, triton_client
from tests.support.models import onnx_costly_graphs, onnx_graphs

IMAGE = [float(i % 17) for i in range(64)]
PROMPT = "A list is"


@pytest.fixture(params=GRPC_KINDS)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    with triton_client(server, request.param) as client:
        yield client


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with channel_to(server) as channel:
        yield channel


@contextmanager
def channel_to(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def tensor(name: str, array: Any, datatype: str) -> Any:
    given = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def strings(*texts: str) -> Any:
    array = np.empty(len(texts), dtype=object)
    array[:] = [text.encode() for text in texts]
    return array


def refusal(code: str, *words: str) -> Any:
    """Expect the error that Triton's client raises, with this status and all these words."""
    pattern = rf"(?s)^\[StatusCode\.{code}\]" + "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(InferenceServerException, match=pattern)


class TestModelInfer:
    @pytest.mark.parametrize("dtype", sorted(set(NUMPY_DTYPES) - {"bfloat16"}))
    def test_datatypes_equal_infer_bit_for_bit(self, client: Any, server: RunningServer, dtype: str) -> None:
        if dtype == "string":
            array, numbers = strings("a", "", "žluťoučký"), ["a", "", "žluťoučký"]
        else:
            array = np.array([0, 1, 1, 0] if dtype == "bool" else [3, 0, 1, 120], NUMPY_DTYPES[dtype])
            numbers = array.tolist()
        answer = client.infer(dtype, [tensor("x", array, DATATYPES[dtype])], request_id="7")
        theirs = answer.as_numpy("y")
        assert theirs.dtype == array.dtype
        np.testing.assert_array_equal(theirs, array)
        assert server.infer(dtype, inputs={"x": numbers})["outputs"]["y"]["data"] == numbers
        assert answer.get_response().id == "7"

    def test_outputs_equal_infer_bit_for_bit(self, client: Any, server: RunningServer) -> None:
        questions = np.random.default_rng(3).standard_normal((2, 4), np.float32)
        given = [tensor(name, questions + i, "FP32") for i, name in enumerate("ab")]
        answer = client.infer("add", given)
        inputs = {name: (questions + i).tolist() for i, name in enumerate("ab")}
        ours = server.infer("add", inputs=inputs)["outputs"]
        for name in ("sum", "product"):
            np.testing.assert_array_equal(answer.as_numpy(name), np.array(ours[name]["data"], np.float32), strict=True)

    def test_only_named_outputs_returned(self, client: Any) -> None:
        given = [tensor(name, np.ones((1, 4), np.float32), "FP32") for name in "ab"]
        answer = client.infer("add", given, outputs=[tritonclient.grpc.InferRequestedOutput("product")])
        assert [output.name for output in answer.get_response().outputs] == ["product"]

    def test_classification(self, client: Any) -> None:
        given = [tensor("x", np.array([0.5, 3.0, 1.0], np.float32), "FP32")]
        wanted = [tritonclient.grpc.InferRequestedOutput("y", class_count=2)]
        classes = client.infer("float32", given, outputs=wanted).as_numpy("y")
        assert [each.decode() for each in classes.reshape(-1)] == ["3.000000:1", "1.000000:2"]

    def test_typed_contents_are_answered_typed(self, channel: grpc.Channel) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="float32")
        given = request.inputs.add(name="x", datatype="FP32", shape=[3])
        given.contents.fp32_contents.extend([1.5, 2.5, -0.0])
        answer = stub.ModelInfer(request)
        assert list(answer.outputs[0].contents.fp32_contents) == [1.5, 2.5, -0.0]
        assert not answer.raw_output_contents

    def test_embeddings_of_texts(self, client: Any, server: RunningServer) -> None:
        texts = ["Engines wait.", "Bread rises."]
        answer = client.infer("minilm", [tensor("text", strings(*texts), "BYTES")]).as_numpy("embeddings")
        ours = server.infer("minilm", text=texts)["embeddings"]
        np.testing.assert_allclose(answer, np.array(ours, np.float32), atol=1e-6)

    def test_generated_text_equals_infer(self, client: Any, server: RunningServer) -> None:
        options = {"max_tokens": 12, "temperature": 0}
        answer = client.infer("tiny-llama", [tensor("text_input", strings(PROMPT), "BYTES")], parameters=options)
        assert (
            answer.as_numpy("text_output")[0].decode() == server.infer("tiny-llama", prompt=PROMPT, **options)["text"]
        )

    @pytest.mark.parametrize(
        ("model", "version", "options", "code", "words"),
        [
            ("nothing", "", {}, "NOT_FOUND", ("nothing",)),
            ("float32", "9", {}, "NOT_FOUND", ('"9"',)),
            ("float64", "", {}, "INVALID_ARGUMENT", ("inputs.x", "FP32", "FP64")),
            ("add", "", {}, "INVALID_ARGUMENT", ("inputs.x",)),
            ("float32", "", {"priority": 77}, "INVALID_ARGUMENT", ("priority", "77")),
        ],
    )
    def test_errors_have_status_and_message(
        self, client: Any, model: str, version: str, options: dict[str, Any], code: str, words: tuple[str, ...]
    ) -> None:
        with refusal(code, *words):
            client.infer(model, [tensor("x", np.ones(3, np.float32), "FP32")], model_version=version, **options)

    def test_invalid_message_refused(self, channel: grpc.Channel) -> None:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as told:
            call(b"\xff\xff\xff\xff")
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    def test_unknown_call_refused(self, channel: grpc.Channel) -> None:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/SystemSharedMemoryStatus")
        with pytest.raises(grpc.RpcError) as told:
            call(b"")
        assert told.value.code() is grpc.StatusCode.UNIMPLEMENTED


class TestManagement:
    def test_health_and_metadata(self, client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("digits")
        assert client.is_model_ready("digits", "1")
        assert not client.is_model_ready("nothing")
        assert client.get_server_metadata().name == "roundhouse"
        metadata = client.get_model_metadata("digits")
        assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
            ("image", "FP32", [-1, 64])
        ]
        config = client.get_model_config("digits").config
        assert (config.max_batch_size, list(config.input[0].dims)) == (32, [64])
        with refusal("NOT_FOUND", "nothing"):
            client.get_model_metadata("nothing")

    def test_statistics_count_requests(self, client: Any) -> None:
        before = client.get_inference_statistics("digits").model_stats[0].inference_stats.success.count
        client.infer("digits", [tensor("image", np.array([IMAGE], np.float32), "FP32")])
        (after,) = client.get_inference_statistics("digits").model_stats
        assert after.inference_stats.success.count == before + 1
        assert len(client.get_inference_statistics().model_stats) > 5

    def test_repository(self, start: Start) -> None:
        server = start(DIGITS, **{GRPC_PORT: free_port()}).wait_ready()
        with triton_client(server, "grpc") as client:
            (entry,) = client.get_model_repository_index().models
            assert (entry.name, entry.version, entry.state) == ("digits", "1", "READY")
            client.unload_model("digits")
            assert not client.is_model_ready("digits")
            with refusal("UNAVAILABLE", "unloaded"):
                client.infer("digits", [tensor("image", np.array([IMAGE], np.float32), "FP32")])
            client.load_model("digits")
            assert client.is_model_ready("digits")
            with refusal("UNIMPLEMENTED", "config"):
                client.load_model("digits", config="{}")
            with refusal("NOT_FOUND", "nothing"):
                client.load_model("nothing")

    def test_health_service(self, channel: grpc.Channel) -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "inference.InferenceService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as told:
            stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        assert told.value.code() is grpc.StatusCode.NOT_FOUND
        watching = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()

    def test_reflection(self, channel: grpc.Channel) -> None:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert {"inference.GRPCInferenceService", "inference.InferenceService", "grpc.health.v1.Health"} <= services
        file = database.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert "ModelStreamInfer" in {method.name for service in file.service for method in service.method}


class TestPredict:
    @staticmethod
    def ask(channel: grpc.Channel, **fields: Any) -> Any:
        call = channel.unary_unary(
            "/inference.InferenceService/Predict",
            request_serializer=PredictRequest.SerializeToString,
            response_deserializer=PredictResponse.FromString,
        )
        return call(PredictRequest(**fields), timeout=WAIT_S)

    def test_predictions_equal_infer(self, channel: grpc.Channel, server: RunningServer) -> None:
        answer = self.ask(channel, data=IMAGE * 2, model_name="digits")
        ours = server.infer("digits", input_data=IMAGE * 2)
        assert list(answer.predictions) == ours["output_data"]
        assert list(answer.shape) == ours["output_shape"] == [2]
        shaped = self.ask(channel, data=IMAGE * 2, shape=[2, 64], model_name="digits")
        assert shaped == answer
        whole = self.ask(channel, data=[1, -2, 3], model_name="int64")
        assert list(whole.predictions) == [1, -2, 3]

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"data": [1.0]}, ("model_name: expected a model's name", "default_model")),
            ({"data": [1.0], "model_name": "digits"}, ("data: expected a multiple of 64 values, got 1", "64")),
            (
                {"data": [1.0], "shape": [2], "model_name": "float32"},
                ("shape: expected the shape of 1 numbers, got .2.",),
            ),
            ({"data": [1.0], "shape": [-1], "model_name": "float32"}, ("shape: expected a list",)),
            ({"data": [1.5], "model_name": "int64"}, ("data: expected whole numbers for int64",)),
            ({"data": [300.0], "model_name": "int8"}, ("data: expected int8, from -128 to 127, got 300",)),
            ({"data": [1.0], "model_name": "string"}, ("data: expected string, got numbers",)),
            (
                {"data": [1.0], "model_name": "minilm"},
                ("model_name: expected a tensor model, got task embed", "ModelInfer"),
            ),
            (
                {"data": [1.0], "model_name": "add"},
                ("model_name: expected a model with one required tensor, got a: float32",),
            ),
        ],
    )
    def test_invalid_request_refused_with_reason(
        self, channel: grpc.Channel, fields: dict[str, Any], words: tuple[str, ...]
    ) -> None:
        with pytest.raises(grpc.RpcError) as told:
            self.ask(channel, **fields)
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for word in words:
            assert pytest.approx(True) == bool(__import__("re").search(word, told.value.details())), (
                told.value.details()
            )

    def test_only_model_is_default(self, start: Start) -> None:
        server = start(DIGITS, **{GRPC_PORT: free_port()}).wait_ready()
        with channel_to(server) as channel:
            assert len(self.ask(channel, data=IMAGE).predictions) == 1

    def test_configured_default_model(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("default")
        entries = onnx_entries(folder, {"one": onnx_graphs.identity(), "other": onnx_costly_graphs.slow(0)})
        config = f'[models]\ndefault_model = "one"\n{entries}'
        with serving(folder, config, {GRPC_PORT: free_port()}) as server, channel_to(server.wait_ready()) as channel:
            assert list(self.ask(channel, data=[1, 2, 3]).predictions) == [1, 2, 3]


class TestStream:
    def test_stream_mixes_texts_tensors_and_errors(self, server: RunningServer) -> None:
        responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        options = {"max_tokens": 24, "temperature": 0}
        with triton_client(server, "grpc") as client:
            client.start_stream(lambda result, error: responses.put((result, error)))
            prompt = [tensor("text_input", strings(PROMPT), "BYTES")]
            client.async_stream_infer("tiny-llama", prompt, request_id="text", parameters=options)
            client.async_stream_infer("nothing", prompt, request_id="error")
            for i in range(20):
                given = [tensor("x", np.array([i], np.float32), "FP32")]
                client.async_stream_infer("float32", given, request_id=f"tensor {i}")
            pieces: list[str] = []
            tensors: list[float] = []
            errors: list[str] = []
            is_whole = False
            while not (is_whole and len(tensors) == 20 and errors):
                result, error = responses.get(timeout=WAIT_S)
                if error is not None:
                    errors.append(str(error))
                    continue
                response = result.get_response()
                if response.id == "text":
                    pieces.append(result.as_numpy("text_output")[0].decode())
                    is_whole = response.parameters["triton_final_response"].bool_param
                else:
                    tensors.append(float(result.as_numpy("y")[0]))
            client.stop_stream()
        assert len(pieces) > 3
        assert "".join(pieces) == server.infer("tiny-llama", prompt=PROMPT, **options)["text"]
        assert tensors == list(range(20))
        assert len(errors) == 1
        assert "nothing" in errors[0]

    def test_stream_parameter_off_gives_one_response(self, channel: grpc.Channel, server: RunningServer) -> None:
        request = text_request(max_tokens=8)
        flag = request.inputs.add(name="stream", datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(False)
        (response,) = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        (text,) = response.infer_response.outputs[0].contents.bytes_contents
        assert text.decode() == server.infer("tiny-llama", prompt=PROMPT, max_tokens=8, temperature=0)["text"]

    def test_cancelled_stream_frees_sequence(self, channel: grpc.Channel, server: RunningServer) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        never = threading.Event()

        def requests() -> Iterator[Any]:
            yield text_request(max_tokens=400, ignore_eos=True)
            never.wait(WAIT_S)

        stream = stub.ModelStreamInfer(requests())
        assert next(stream).infer_response.outputs
        assert server.sample("roundhouse_sequences", model="tiny-llama", state="running") == 1
        stream.cancel()
        wait_until(lambda: server.sample("roundhouse_sequences", model="tiny-llama", state="running") == 0)
        wait_until(lambda: server.sample("roundhouse_inflight") == 0)
        never.set()


def text_request(**options: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="tiny-llama", id="text")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PROMPT.encode())
    request.parameters["temperature"].int64_param = 0
    for name, value in options.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    return request


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunGate]]:
    """Start a server whose model `slow` queues one request, and return its gate."""
    folder = tmp_path_factory.mktemp("gated")
    entry, gate = slow_model(folder)
    config = f"{entry}max_queue_size = 1\n[server]\nmax_body_bytes = 100_000\n"
    with serving(folder, config, {GRPC_PORT: free_port()}, gated=True) as server:
        yield server.wait_ready(), gate


class TestBounds:
    @staticmethod
    def ask(server: RunningServer, **options: Any) -> Any:
        with triton_client(server, "grpc") as client:
            return client.infer("slow", [tensor("x", np.ones((1, 4), np.float32), "FP32")], **options)

    def test_overload_is_resource_exhausted(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with ThreadPoolExecutor(8) as many, gate.closed():
            asked = [many.submit(self.ask, server) for _ in range(8)]
            # One runs, one is next, one waits.
            wait_for_done(asked, 5)
            gate.open()
            outcomes = [each.exception() for each in asked]
        refused = [str(each) for each in outcomes if each is not None]
        assert len(refused) == 5
        assert all("[StatusCode.RESOURCE_EXHAUSTED]" in each and "max_queue_size" in each for each in refused)

    def test_deadline_of_call_reaches_queue(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with ThreadPoolExecutor(2) as many, gate.closed():
            first = many.submit(self.ask, server)
            wait_for_inflight(server, 1)
            with refusal("DEADLINE_EXCEEDED"):
                self.ask(server, client_timeout=0.05)
            wait_for_inflight(server, 1)
            gate.open()
            assert first.exception() is None
        wait_for_inflight(server, 0)

    def test_timeout_parameter_is_deadline(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with gate.closed(), refusal("DEADLINE_EXCEEDED", "timeout_ms"):
            self.ask(server, timeout=1000)
        wait_for_inflight(server, 0)

    def test_message_beyond_max_body_bytes(self, gated: tuple[RunningServer, RunGate]) -> None:
        large = tensor("x", np.ones((10_000, 4), np.float32), "FP32")
        with triton_client(gated[0], "grpc") as client, refusal("RESOURCE_EXHAUSTED"):
            client.infer("slow", [large])

    def test_drain_answers_requests_in_flight(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("drain")
        entry, gate = slow_model(folder)
        with ThreadPoolExecutor(1) as one, serving(folder, entry, {GRPC_PORT: free_port()}, gated=True) as server:
            server.wait_ready()
            with channel_to(server) as idle, gate.closed():
                watching = health_pb2_grpc.HealthStub(idle).Watch(health_pb2.HealthCheckRequest())
                next(watching)
                in_flight = one.submit(self.ask, server)
                wait_for_inflight(server, 1)
                server.process.send_signal(signal.SIGTERM)
                wait_for_drain(server)
                gate.open()
                server.wait_stopped(0)
                assert in_flight.exception() is None

    def test_grpc_and_rest_share_batches(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("shared")
        entry = onnx_entries(folder, {"one": onnx_graphs.identity("float32", ("n", 4))}) + "max_queue_delay_ms = 300\n"
        with serving(folder, entry, {GRPC_PORT: free_port()}) as server, ThreadPoolExecutor(2) as both:
            server.wait_ready()
            for _ in range(6):  # larger batches are tried when smaller ones have run
                one = both.submit(server.infer, "one", input_data=[1, 2, 3, 4])
                with triton_client(server, "grpc") as client:
                    answer = client.infer("one", [tensor("x", np.full((1, 4), 7, np.float32), "FP32")])
                assert one.result()["output_data"] == [1, 2, 3, 4]
                assert answer.as_numpy("y").tolist() == [[7] * 4]
            assert server.sample("roundhouse_batch_size_sum", model="one") == 12
            assert server.sample("roundhouse_batch_size_count", model="one") < 12


def test_port_in_use_reported(start: Start, server: RunningServer) -> None:
    with pytest.raises(AssertionError, match=r"server\.grpc_port: cannot listen"):
        start(DIGITS, **{GRPC_PORT: str(server.grpc_port)})


def test_port_given_as_flag() -> None:
    port = int(free_port())
    with RunningServer([str(MODELS / "digits"), "--port", "0", "--grpc-port", str(port)]) as server:
        assert server.grpc_port == port
        with triton_client(server.wait_ready(), "grpc") as client:
            assert client.is_model_ready("digits")


def test_false_string_lengths_refused(channel: grpc.Channel) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for raw in (
        b"\x01",
        struct.pack("<I", 5) + b"abc",
        struct.pack("<I", 2**31) + b"a",
        struct.pack("<I", 1) + b"\xff",
    ):
        request = service_pb2.ModelInferRequest(model_name="string")
        request.inputs.add(name="x", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(raw)
        with pytest.raises(grpc.RpcError) as told:
            stub.ModelInfer(request)
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "inputs[0]" in str(told.value.details())
