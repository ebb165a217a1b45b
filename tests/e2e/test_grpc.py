"""gRPC calls over a real socket, by Triton's own clients and by grpcio: the responses and errors of REST."""

import re
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc

from app.grpc.messages import PredictRequest, PredictResponse
from app.protocols.open_inference.datatypes import DATATYPES
from frameworks.types import NUMPY_DTYPES
from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import GRPC_PORT, MODELS, WAIT_S, RunningServer, free_port, serving
from tests.e2e.triton_clients import GRPC_KINDS, grpc_channel, grpc_tensor, refusal, string_array, triton_client
from tests.support.models import onnx_costly_graphs, onnx_graphs

IMAGE = [float(i % 17) for i in range(64)]
PROMPT = "A list is"


@pytest.fixture(params=GRPC_KINDS)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    with triton_client(server, request.param) as client:
        yield client


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc_channel(server) as channel:
        yield channel


class TestModelInfer:
    @pytest.mark.parametrize("dtype", sorted(set(NUMPY_DTYPES) - {"bfloat16"}))
    def test_datatypes_equal_infer_bit_for_bit(self, client: Any, server: RunningServer, dtype: str) -> None:
        if dtype == "string":
            array, numbers = string_array("a", "", "žluťoučký"), ["a", "", "žluťoučký"]
        else:
            array = np.array([0, 1, 1, 0] if dtype == "bool" else [3, 0, 1, 120], NUMPY_DTYPES[dtype])
            numbers = array.tolist()
        answer = client.infer(dtype, [grpc_tensor("x", array, DATATYPES[dtype])], request_id="7")
        theirs = answer.as_numpy("y")
        assert theirs.dtype == array.dtype
        np.testing.assert_array_equal(theirs, array)
        assert server.infer(dtype, inputs={"x": numbers})["outputs"]["y"]["data"] == numbers
        assert answer.get_response().id == "7"

    def test_outputs_equal_infer_bit_for_bit(self, client: Any, server: RunningServer) -> None:
        questions = np.random.default_rng(3).standard_normal((2, 4), np.float32)
        given = [grpc_tensor(name, questions + i, "FP32") for i, name in enumerate("ab")]
        answer = client.infer("add", given)
        inputs = {name: (questions + i).tolist() for i, name in enumerate("ab")}
        ours = server.infer("add", inputs=inputs)["outputs"]
        for name in ("sum", "product"):
            np.testing.assert_array_equal(answer.as_numpy(name), np.array(ours[name]["data"], np.float32), strict=True)

    def test_only_named_outputs_returned(self, client: Any) -> None:
        given = [grpc_tensor(name, np.ones((1, 4), np.float32), "FP32") for name in "ab"]
        answer = client.infer("add", given, outputs=[tritonclient.grpc.InferRequestedOutput("product")])
        assert [output.name for output in answer.get_response().outputs] == ["product"]

    def test_classification(self, client: Any) -> None:
        given = [grpc_tensor("x", np.array([0.5, 3.0, 1.0], np.float32), "FP32")]
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
        answer = client.infer("minilm", [grpc_tensor("text", string_array(*texts), "BYTES")]).as_numpy("embeddings")
        ours = server.infer("minilm", text=texts)["embeddings"]
        np.testing.assert_allclose(answer, np.array(ours, np.float32), atol=1e-6)

    def test_generated_text_equals_infer(self, client: Any, server: RunningServer) -> None:
        options = {"max_tokens": 12, "temperature": 0}
        answer = client.infer(
            "tiny-llama", [grpc_tensor("text_input", string_array(PROMPT), "BYTES")], parameters=options
        )
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
            client.infer(model, [grpc_tensor("x", np.ones(3, np.float32), "FP32")], model_version=version, **options)

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
        client.infer("digits", [grpc_tensor("image", np.array([IMAGE], np.float32), "FP32")])
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
                client.infer("digits", [grpc_tensor("image", np.array([IMAGE], np.float32), "FP32")])
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
            assert re.search(word, str(told.value.details())), told.value.details()

    def test_only_model_is_default(self, start: Start) -> None:
        server = start(DIGITS, **{GRPC_PORT: free_port()}).wait_ready()
        with grpc_channel(server) as channel:
            assert len(self.ask(channel, data=IMAGE).predictions) == 1

    def test_configured_default_model(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("default")
        entries = onnx_entries(folder, {"one": onnx_graphs.identity(), "other": onnx_costly_graphs.slow(0)})
        config = f'[models]\ndefault_model = "one"\n{entries}'
        with serving(folder, config, {GRPC_PORT: free_port()}) as server, grpc_channel(server.wait_ready()) as channel:
            assert list(self.ask(channel, data=[1, 2, 3]).predictions) == [1, 2, 3]


def test_port_in_use_reported(start: Start, server: RunningServer) -> None:
    with pytest.raises(AssertionError, match=r"server\.grpc_port: cannot listen"):
        start(DIGITS, **{GRPC_PORT: str(server.grpc_port)})


@pytest.mark.extended
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
