"""MLServer's stubs, converters and codecs over gRPC, and its command of batches over HTTP."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx
import numpy as np
import pytest
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, StringCodec, StringRequestCodec
from mlserver.grpc import converters
from mlserver.grpc import dataplane_pb2 as messages
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.types import InferenceRequest, Parameters, RequestOutput

URL = os.environ["ROUNDHOUSE_URL"]
ADDRESS = URL.removeprefix("http://")
AUTHORIZATION = f"Bearer {os.environ['ROUNDHOUSE_API_KEY']}"
METADATA = (("authorization", AUTHORIZATION),)
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
TEXTS = ["Engines wait.", "Bread rises overnight."]
PROMPT = "A list is"
# From this size on the server reads the contents of a message apart from the rest.
MANY = 20_000

Result = TypeVar("Result")


def call(ask: Callable[[Any], Awaitable[Result]]) -> Result:
    """Open a channel, and return what the stub of MLServer is answered."""

    async def run() -> Result:
        async with grpc.aio.insecure_channel(ADDRESS) as channel:
            return await ask(GRPCInferenceServiceStub(channel))

    return asyncio.run(run())


def request(model: str, *inputs: Any, is_raw: bool = False, version: str = "", **options: Any) -> Any:
    asked = InferenceRequest(inputs=list(inputs), **options)
    return converters.ModelInferRequestConverter.from_types(asked, model, version, use_raw=is_raw)


def infer(asked: Any, **options: Any) -> Any:
    answer = call(lambda stub: stub.ModelInfer(asked, metadata=METADATA, **options))
    return converters.ModelInferResponseConverter.to_types(answer)


def infer_plainly(model: str, **body: object) -> Any:
    """Return what the server answers without MLServer."""
    headers = {"authorization": AUTHORIZATION}
    answer = httpx.post(f"{URL}/models/{model}/infer", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def images(count: int) -> Any:
    return np.random.default_rng(7).integers(0, 17, (count, 64)).astype(np.float32)


def labels(array: Any) -> list[int]:
    found: list[int] = infer_plainly("digits", inputs={"image": array.tolist()})["outputs"]["output_label"]["data"]
    return found


class TestValues:
    @pytest.mark.parametrize("count", [4, MANY])
    @pytest.mark.parametrize("is_raw", [True, False])
    @pytest.mark.parametrize("dtype", DTYPES + FLOATS)
    def test_datatypes_equal_infer(self, dtype: str, is_raw: bool, count: int) -> None:
        if dtype == "float16" and not is_raw:
            pytest.skip("the protocol has no typed contents for FP16")
        # The codec makes columns of vectors.
        array = (np.arange(count) % 100).astype(dtype).reshape(-1, 2)
        answer = infer(request(dtype, NumpyCodec.encode_input("x", array), is_raw=is_raw))
        np.testing.assert_array_equal(NumpyCodec.decode_output(answer.outputs[0]), array, strict=True)
        assert infer_plainly(dtype, inputs={"x": array.tolist()})["outputs"]["y"]["data"] == array.tolist()

    @pytest.mark.parametrize("count", [3, MANY])
    @pytest.mark.parametrize("is_raw", [True, False])
    def test_strings_equal_infer(self, is_raw: bool, count: int) -> None:
        strings = [["a", "", "žluťoučký"][i % 3] for i in range(count)]
        answer = infer(request("string", StringCodec.encode_input("x", strings), is_raw=is_raw))
        assert StringCodec.decode_output(answer.outputs[0]) == strings
        plain = infer_plainly("string", inputs={"x": strings})["outputs"]["y"]["data"]
        assert StringRequestCodec.decode_response(answer) == plain

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_digits_equal_infer(self, is_raw: bool) -> None:
        array = images(5)
        answer = infer(request("digits", NumpyCodec.encode_input("image", array), is_raw=is_raw, id="7"))
        assert (answer.id, answer.model_name, answer.model_version) == ("7", "digits", "1")
        assert NumpyRequestCodec.decode_response(answer).tolist() == labels(array)

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_embeddings_equal_infer(self, is_raw: bool) -> None:
        # The content types are parameters of MLServer, which other servers ignore.
        wanted = [RequestOutput(name="embeddings", parameters=Parameters(content_type="np"))]
        options = {"outputs": wanted, "parameters": Parameters(content_type="str")}
        answer = infer(request("minilm", StringCodec.encode_input("text", TEXTS), is_raw=is_raw, **options))
        plain = np.array(infer_plainly("minilm", text=TEXTS)["embeddings"], np.float32)
        np.testing.assert_allclose(NumpyCodec.decode_output(answer.outputs[0]), plain, atol=1e-6)

    @pytest.mark.parametrize("is_raw", [True, False])
    def test_generated_text_equals_infer(self, is_raw: bool) -> None:
        options = {"max_tokens": 12, "temperature": 0}
        prompt = StringCodec.encode_input("text_input", [PROMPT])
        answer = infer(request("tiny-llama", prompt, is_raw=is_raw, parameters=Parameters(**options)))
        plain = infer_plainly("tiny-llama", prompt=PROMPT, **options)["text"]
        assert StringCodec.decode_output(answer.outputs[0]) == [plain]

    def test_compressed_request(self) -> None:
        array = images(200)
        asked = request("digits", NumpyCodec.encode_input("image", array))
        answer = infer(asked, compression=grpc.Compression.Gzip)
        assert NumpyCodec.decode_output(answer.outputs[0]).tolist() == labels(array)


class TestErrors:
    @pytest.mark.parametrize(
        ("model", "width", "version", "code", "word"),
        [
            ("absent", 64, "", "NOT_FOUND", "absent"),
            ("digits", 64, "9", "NOT_FOUND", '"9"'),
            ("digits", 3, "", "INVALID_ARGUMENT", "inputs.image"),
        ],
    )
    def test_status_and_reason(self, model: str, width: int, version: str, code: str, word: str) -> None:
        image = NumpyCodec.encode_input("image", np.zeros((1, width), np.float32))
        with pytest.raises(grpc.RpcError) as refused:
            infer(request(model, image, version=version))
        assert refused.value.code().name == code
        assert word in (refused.value.details() or "")

    def test_no_key(self) -> None:
        asked = request("digits", NumpyCodec.encode_input("image", images(1)))
        with pytest.raises(grpc.RpcError) as refused:
            call(lambda stub: stub.ModelInfer(asked))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


class TestManagement:
    def test_server(self) -> None:
        assert ask("ServerLive", messages.ServerLiveRequest()).live
        assert ask("ServerReady", messages.ServerReadyRequest()).ready
        server = converters.ServerMetadataResponseConverter.to_types(
            ask("ServerMetadata", messages.ServerMetadataRequest())
        )
        assert (server.name, "binary_tensor_data" in server.extensions) == ("roundhouse", True)

    def test_metadata_equal_rest(self) -> None:
        for model in ("digits", "minilm", "tiny-llama"):
            theirs = converters.ModelMetadataResponseConverter.to_types(
                ask("ModelMetadata", messages.ModelMetadataRequest(name=model))
            ).model_dump(mode="json", exclude_none=True)
            rest = httpx.get(f"{URL}/v2/models/{model}", headers={"authorization": AUTHORIZATION}).json()
            for tensor in rest["inputs"] + rest["outputs"]:
                # REST says more of a tensor than the messages of gRPC have.
                for field in tensor.keys() - {"name", "datatype", "shape"}:
                    del tensor[field]
            assert theirs == {name: rest[name] for name in ("name", "versions", "platform", "inputs", "outputs")}

    def test_repository(self) -> None:
        asked = request("int16", NumpyCodec.encode_input("x", np.array([[1, 2]], np.int16)))
        ask("RepositoryModelUnload", messages.RepositoryModelUnloadRequest(model_name="int16"))
        try:
            assert state("int16") == "UNAVAILABLE"
            assert not ask("ModelReady", messages.ModelReadyRequest(name="int16")).ready
            with pytest.raises(grpc.RpcError) as refused:
                infer(asked)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            ask("RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="int16"))
        assert state("int16") == "READY"
        assert ask("ModelReady", messages.ModelReadyRequest(name="int16")).ready
        assert NumpyRequestCodec.decode_response(infer(asked)).tolist() == [[1, 2]]


def ask(method: str, message: Any) -> Any:
    return call(lambda stub: getattr(stub, method)(message, metadata=METADATA))


def state(model: str) -> str:
    index = ask("RepositoryIndex", messages.RepositoryIndexRequest())
    (found,) = [each.state for each in index.models if each.name == model]
    return str(found)


def test_stream_has_messages_of_triton() -> None:
    """The Open Inference Protocol has no stream. MLServer's has the name of Triton's, and another response."""

    async def read(stub: Any) -> list[Any]:
        async def requests() -> AsyncIterator[Any]:
            yield request("digits", NumpyCodec.encode_input("image", images(2)))

        return [each async for each in stub.ModelStreamInfer(requests(), metadata=METADATA)]

    (answer,) = call(read)
    # The field of Triton's response is the version in MLServer's.
    inner = messages.ModelInferResponse.FromString(answer.model_version.encode())
    assert not answer.outputs
    found = NumpyRequestCodec.decode_response(converters.ModelInferResponseConverter.to_types(inner))
    assert found.tolist() == labels(images(2))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("is_binary", [True, False])
def test_infer_command(tmp_path: Path, is_binary: bool, size: int) -> None:
    given, made = tmp_path / "given", tmp_path / "made"
    array = images(5)
    rows = [InferenceRequest(id=str(i), inputs=[NumpyCodec.encode_input("image", array[i : i + 1])]) for i in range(5)]
    given.write_text("".join(each.model_dump_json(exclude_none=True) + "\n" for each in rows))
    words = [str(Path(sys.executable).with_name("mlserver")), "infer", "--url", ADDRESS, "--model-name", "digits"]
    words += ["--input-data-path", str(given), "--output-data-path", str(made), "--batch-size", str(size)]
    words += ["--retries", "1", "--request-headers", f"authorization: {AUTHORIZATION}"]
    subprocess.run([*words, "--binary-data"] if is_binary else words, check=True, timeout=60)
    answers = {each["id"]: each["outputs"][0]["data"] for each in map(json.loads, made.read_text().splitlines())}
    assert answers == {str(i): [label] for i, label in enumerate(labels(array))}
