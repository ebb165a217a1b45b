"""KServe's clients over gRPC and HTTP: values of each datatype, keys, errors, time limits and readiness."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import httpx
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.infer_type import RequestedOutput

URL = os.environ["ROUNDHOUSE_URL"]
ADDRESS = URL.removeprefix("http://")
HEADERS = {"authorization": f"Bearer {os.environ['ROUNDHOUSE_API_KEY']}"}
METADATA = tuple(HEADERS.items())
DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "object": "BYTES",
}
TEXTS = ["Engines wait.", "Bread rises overnight."]
PROMPT = "A list is"
# From this size on the server reads the contents of a message apart from the rest.
MANY = 20_000

Result = TypeVar("Result")


def call(ask: Callable[[Any], Awaitable[Result]], **options: Any) -> Result:
    """Open a client over gRPC, and return what it is answered."""

    async def run() -> Result:
        async with InferenceGRPCClient(ADDRESS, **options) as client:
            return await ask(client)

    return asyncio.run(run())


def call_http(ask: Callable[[Any], Awaitable[Result]], protocol: str = "v2") -> Result:
    async def run() -> Result:
        async with InferenceRESTClient(RESTConfig(protocol=protocol)) as client:
            return await ask(client)

    return asyncio.run(run())


def request(model: str, name: str, array: Any, is_raw: bool = True, **options: Any) -> Any:
    tensor = InferInput(name, list(array.shape), DATATYPES[str(array.dtype)])
    tensor.set_data_from_numpy(array, binary_data=is_raw)
    return InferRequest(model_name=model, infer_inputs=[tensor], **options)


def infer(asked: Any, **options: Any) -> Any:
    return call(lambda client: client.infer(asked, headers=METADATA, **options))


def infer_plainly(model: str, **body: object) -> Any:
    """Return what the server answers without a client of KServe."""
    answer = httpx.post(f"{URL}/models/{model}/infer", json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def some_values(dtype: str, count: int) -> Any:
    if dtype == "object":
        return np.array([["a", "", "žluťoučký"][i % 3].encode() for i in range(count)], object)
    return (np.arange(count) % 100).astype(dtype)


def texts(*values: str) -> Any:
    return np.array([value.encode() for value in values], object)


class TestValues:
    @pytest.mark.parametrize("count", [4, MANY])
    @pytest.mark.parametrize("is_raw", [True, False])
    @pytest.mark.parametrize("dtype", sorted(DATATYPES))
    def test_datatypes_equal_infer(self, dtype: str, is_raw: bool, count: int) -> None:
        if dtype == "float16" and not is_raw:
            pytest.skip("the protocol has no typed contents for FP16")
        array, model = some_values(dtype, count), "string" if dtype == "object" else dtype
        (output,) = infer(request(model, "x", array, is_raw)).outputs
        np.testing.assert_array_equal(output.as_numpy(), array, strict=True)
        plain = [value.decode() for value in array] if dtype == "object" else array.tolist()
        assert infer_plainly(model, inputs={"x": plain})["outputs"]["y"]["data"] == plain

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_digits_equal_infer(self, is_raw: bool) -> None:
        images = np.random.default_rng(7).integers(0, 17, (5, 64)).astype(np.float32)
        answer = infer(request("digits", "image", images, is_raw, request_id="7"))
        (output,) = answer.outputs
        assert (answer.id, answer.model_name, answer.model_version) == ("7", "digits", "1")
        plain = infer_plainly("digits", inputs={"image": images.tolist()})["outputs"]["output_label"]["data"]
        assert output.as_numpy().tolist() == plain

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_embeddings_equal_infer(self, is_raw: bool) -> None:
        (output,) = infer(request("minilm", "text", texts(*TEXTS), is_raw)).outputs
        plain = infer_plainly("minilm", text=TEXTS)["embeddings"]
        np.testing.assert_allclose(output.as_numpy(), np.array(plain, np.float32), atol=1e-6)

    def test_generated_text_equals_infer(self) -> None:
        options = {"max_tokens": 12, "temperature": 0}
        (output,) = infer(request("tiny-llama", "text_input", texts(PROMPT), parameters=options)).outputs
        assert output.as_numpy()[0].decode() == infer_plainly("tiny-llama", prompt=PROMPT, **options)["text"]

    def test_requested_output_alone_is_returned(self) -> None:
        wanted = [RequestedOutput(name) for name in ("text_output", "num_output_tokens")]
        asked = request("tiny-llama", "text_input", texts(PROMPT), request_outputs=wanted)
        assert [output.name for output in infer(asked).outputs] == ["text_output", "num_output_tokens"]


class TestErrors:
    @pytest.mark.parametrize(
        ("model", "width", "options", "code", "word"),
        [
            ("absent", 64, {}, "NOT_FOUND", "absent"),
            ("digits", 64, {"model_version": "9"}, "NOT_FOUND", '"9"'),
            ("digits", 3, {}, "INVALID_ARGUMENT", "inputs.image"),
            ("digits", 64, {"parameters": {"priority": 77}}, "INVALID_ARGUMENT", "77"),
            ("digits", 64, {"parameters": {"timeout": 1}}, "DEADLINE_EXCEEDED", "digits"),
        ],
    )
    def test_status_and_reason(self, model: str, width: int, options: Any, code: str, word: str) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            infer(request(model, "image", np.zeros((1, width), np.float32), **options))
        assert refused.value.code().name == code
        assert word in (refused.value.details() or "")

    @pytest.mark.parametrize("metadata", [None, (("authorization", "Bearer another-key-of-a-client"),)])
    def test_wrong_key(self, metadata: Any) -> None:
        asked = request("digits", "image", np.zeros((1, 64), np.float32))
        with pytest.raises(grpc.RpcError) as refused:
            call(lambda client: client.infer(asked, headers=metadata))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    def test_time_limit_of_client(self) -> None:
        asked = request("tiny-llama", "text_input", texts(PROMPT), parameters={"max_tokens": 500, "ignore_eos": True})

        async def ask(client: Any) -> Any:
            # The limit is not spent for the connection.
            await client.is_server_live(headers=METADATA)
            with pytest.raises(grpc.RpcError) as refused:
                await client.infer(asked, headers=METADATA, timeout=0.02)
            assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            # The connection serves the next call.
            return await client.infer(request("float32", "x", some_values("float32", 4)), headers=METADATA)

        assert call(ask).outputs[0].as_numpy().tolist() == [0, 1, 2, 3]


class TestReadiness:
    def test_server(self) -> None:
        assert call(lambda client: client.is_server_live(headers=METADATA)) is True
        assert call(lambda client: client.is_server_ready(headers=METADATA)) is True

    @pytest.mark.parametrize(("model", "is_ready"), [("digits", True), ("absent", False)])
    def test_model(self, model: str, is_ready: bool) -> None:
        assert call(lambda client: client.is_model_ready(model, headers=METADATA)) is is_ready

    @pytest.mark.parametrize(("retries", "attempts"), [(3, 3), (0, 1)])
    def test_unloaded_model_asked_again_by_client(self, retries: int, attempts: int) -> None:
        asked = request("int8", "x", some_values("int8", 4))
        manage("unload")
        try:
            assert call(lambda client: client.is_model_ready("int8", headers=METADATA)) is False
            before = num_unavailable("int8")
            with pytest.raises(grpc.RpcError) as refused:
                call(lambda client: client.infer(asked, headers=METADATA), retries=retries)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert num_unavailable("int8") - before == attempts
        finally:
            manage("load")
        assert infer(asked).outputs[0].as_numpy().tolist() == [0, 1, 2, 3]


def manage(action: str) -> None:
    answer = httpx.post(f"{URL}/v2/repository/models/int8/{action}", headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text


def num_unavailable(model: str) -> float:
    """Return how many requests to a model were refused because it is not loaded."""
    lines = httpx.get(f"{URL}/metrics", headers=HEADERS, timeout=60).text.splitlines()
    counts = [each for each in lines if each.startswith("roundhouse_requests_total") and f'model="{model}"' in each]
    return sum(float(each.rpartition(" ")[2]) for each in counts if 'code="503"' in each)


class TestRest:
    def test_readiness(self) -> None:
        assert call_http(lambda client: client.is_server_live(URL)) is True
        assert call_http(lambda client: client.is_server_ready(URL)) is True
        assert call_http(lambda client: client.is_model_ready(URL, "digits", HEADERS)) is True
        assert call_http(lambda client: client.is_model_ready(URL, "absent", HEADERS)) is False

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_values_equal_grpc(self, is_raw: bool) -> None:
        asked = [request("minilm", "text", texts(*TEXTS), is_raw, request_id="7") for _ in range(2)]
        answer = call_http(lambda client: client.infer(URL, asked[0], "minilm", dict(HEADERS)))
        ours = infer(asked[1])
        assert answer.id == ours.id == "7"
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), ours.outputs[0].as_numpy(), strict=True)

    @pytest.mark.parametrize(("model", "headers", "status"), [("absent", HEADERS, 404), ("digits", {}, 401)])
    def test_errors(self, model: str, headers: dict[str, str], status: int) -> None:
        asked = request(model, "image", np.zeros((1, 64), np.float32))
        with pytest.raises(httpx.HTTPStatusError, match=r"absent|key: ") as refused:
            call_http(lambda client: client.infer(URL, asked, model, dict(headers)))
        assert refused.value.response.status_code == status

    def test_first_protocol(self) -> None:
        rows = {"instances": [[8] * 64, [0] * 64]}
        assert call_http(lambda client: client.is_model_ready(URL, "digits", HEADERS), "v1") is True
        answer = call_http(lambda client: client.infer(URL, rows, "digits", HEADERS), "v1")
        plain = infer_plainly("digits", inputs={"image": rows["instances"]})["outputs"]["output_label"]["data"]
        assert answer == {"predictions": plain}


def test_calls_of_stub_that_client_lacks() -> None:
    async def ask(client: Any) -> None:
        stub = client._client_stub
        server = await stub.ServerMetadata(messages.ServerMetadataRequest(), metadata=METADATA)
        assert (server.name, "binary_tensor_data" in server.extensions) == ("roundhouse", True)
        model = await stub.ModelMetadata(messages.ModelMetadataRequest(name="digits"), metadata=METADATA)
        (image,), (label,) = model.inputs, model.outputs
        assert (image.name, image.datatype, list(image.shape)) == ("image", "FP32", [-1, 64])
        assert (label.name, label.datatype, list(label.shape)) == ("output_label", "INT64", [-1])
        # KServe numbers the fields of this message as no other server does: the model is the repository of others.
        with pytest.raises(grpc.RpcError) as refused:
            await stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="digits"), metadata=METADATA)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    call(ask)
