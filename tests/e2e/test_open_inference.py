"""The Open Inference Protocol over REST, by Triton's own clients: responses equal /infer bit for bit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient import http
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from app.protocols.open_inference.datatypes import DATATYPES, DTYPES
from frameworks.types import NUMPY_DTYPES, Array
from tests.e2e.configs import ALL_KINDS
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer
from tests.e2e.test_tensors import EXTREMES
from tests.e2e.triton_clients import http_tensor
from tests.support.models import onnx_graphs

Client = Any
IN_JSON = tuple(dtype for dtype in DTYPES.values() if dtype not in ("float16", "bfloat16"))


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def array_of(dtype: str, values: Any) -> Array:
    """Return the array that Triton's client expects."""
    return np.array(values, ml_dtypes.bfloat16 if dtype == "bfloat16" else NUMPY_DTYPES[dtype])


def strings_of(array: Array) -> list[str]:
    """Decode strings, which the client gives as bytes or as str."""
    return [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()]


def refused(client: Client, status: int, model: str, *inputs: http.InferInput, **options: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, list(inputs), **options)
    assert caught.value.status() == str(status)
    message: str = caught.value.message()
    return message


@pytest.mark.parametrize("dtype", EXTREMES)
def test_datatype_round_trips(dtype: str, client: Client) -> None:
    values = EXTREMES[dtype]
    for shape in ((len(values),), (2, len(values)), (1, 1, len(values), 1)):
        array = np.resize(array_of(dtype, values), shape)
        for sent_in_bytes in (True, False) if dtype in IN_JSON else (True,):
            for wanted_in_bytes in (True, False) if dtype in IN_JSON else (True,):
                outputs = [http.InferRequestedOutput("y", binary_data=wanted_in_bytes)]
                answer = client.infer(dtype, [http_tensor("x", array, sent_in_bytes)], outputs=outputs)
                came = answer.as_numpy("y")
                assert came.shape == shape
                assert answer.get_output("y")["datatype"] == DATATYPES[dtype]
                if dtype == "string":
                    assert strings_of(came) == strings_of(array)
                else:
                    assert came.astype(array.dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", EXTREMES)
def test_scalar_and_empty_tensor(dtype: str, client: Client, server: RunningServer) -> None:
    scalar = array_of(dtype, EXTREMES[dtype][-1])
    answer = client.infer(dtype, [http_tensor("x", scalar)])
    assert answer.get_output("y")["shape"] == []
    if dtype == "string":
        assert strings_of(answer.as_numpy("y")) == [scalar.item()]
    else:
        assert answer.as_numpy("y").astype(scalar.dtype).tobytes() == scalar.tobytes()
    for shape in ((0,), (0, 3), (3, 0)):
        empty = array_of(dtype, []).reshape(shape)
        for binary in (True, False) if dtype in IN_JSON else (True,):
            outputs = [http.InferRequestedOutput("y", binary_data=binary)]
            answer = client.infer(dtype, [http_tensor("x", empty, binary)], outputs=outputs)
            assert answer.get_output("y")["shape"] == list(shape)
            assert answer.as_numpy("y").shape == shape


@pytest.mark.parametrize("name", ["add", "log"])
def test_outputs_equal_infer_bit_for_bit(name: str, client: Client, server: RunningServer) -> None:
    random = np.random.default_rng(3)
    names = [each.name for each in ALL_KINDS[name].graph.input]
    feeds = {each: random.lognormal(0, 20, (50, 4)).astype(np.float32) for each in names}
    answer = client.infer(name, [http_tensor(each, array) for each, array in feeds.items()])
    told = server.infer(name, inputs={each: array.tolist() for each, array in feeds.items()})["outputs"]
    assert [output["name"] for output in answer.get_response()["outputs"]] == list(told)
    raw = onnx_graphs.session(ALL_KINDS[name])
    for output in told:
        if output in ("float16", "bfloat16"):
            continue
        (wanted,) = raw.run([output], feeds)
        assert answer.as_numpy(output).tobytes() == wanted.tobytes()
        in_json = [[np.nan if value is None else value for value in row] for row in told[output]["data"]]
        assert np.array_equal(np.array(in_json, wanted.dtype)[np.isfinite(wanted)], wanted[np.isfinite(wanted)])


def test_inputs_and_outputs_of_several_datatypes(client: Client) -> None:
    strings, numbers = np.array(["x", "ü"], object), np.array([[1, 2], [3, 4]], np.int32)
    inputs = [
        http_tensor("c", numbers),
        http_tensor("a", strings, binary=False),
        http_tensor("b", np.array(["z"], object)),
    ]
    outputs = [http.InferRequestedOutput("doubled", binary_data=False), http.InferRequestedOutput("joined")]
    answer = client.infer("concat", inputs, outputs=outputs, request_id="seven")
    assert strings_of(answer.as_numpy("joined")) == ["x", "ü", "z"]
    assert answer.as_numpy("doubled").tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
    response = answer.get_response()
    assert [output["name"] for output in response["outputs"]] == ["doubled", "joined"]
    assert (response["id"], response["model_name"], response["model_version"]) == ("seven", "concat", "1")
    only = client.infer("concat", inputs, outputs=[http.InferRequestedOutput("joined")])
    assert only.as_numpy("doubled") is None


def test_optional_fields_left_out(client: Client) -> None:
    x = http_tensor("x", np.array([1, 2], np.float32))
    assert client.infer("scaled", [x]).as_numpy("y").tolist() == [2, 4]
    assert client.infer("scaled", [http_tensor("factor", np.array([10], np.float32)), x]).as_numpy("y").tolist() == [
        10,
        20,
    ]
    answer = client.infer("optional-in", [])
    assert (answer.as_numpy("given").item(), answer.as_numpy("y").tolist()) == (False, [-1])


def test_sequences_and_maps_refused(client: Client) -> None:
    image = http_tensor("image", np.zeros((2, 64), np.float32))
    answer = client.infer("digits", [image])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["output_label"]
    assert answer.as_numpy("output_label").shape == (2,)
    message = refused(client, 400, "digits", image, outputs=[http.InferRequestedOutput("output_probability")])
    assert message.startswith(
        "outputs.output_probability: this protocol does not support sequence(map(int64, float32))"
    )
    assert "send the request to POST /infer" in message
    for model, words in (
        ("sequence-in", 'requires "parts"; this protocol does not support sequence(float32)'),
        ("maps-by-string", "the model has no output that is a tensor"),
    ):
        assert words in refused(client, 400, model, http_tensor("scores", np.zeros((1, 3), np.float32)))


def test_versions_of_model(start: Start, tmp_path: Path) -> None:
    for version in (1, 2):
        (tmp_path / "m" / str(version)).mkdir(parents=True)
        onnx_graphs.save(onnx_graphs.scaled(version), tmp_path / "m" / str(version))
    server = start(
        f'[[models.onnx_models]]\nname = "m"\npath = "{tmp_path / "m"}"\nversion_policy = "all"\n'
    ).wait_ready()
    x = http_tensor("x", np.array([3], np.float32))
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for number in ("1", "2"):
            answer = client.infer("m", [x], model_version=number)
            assert answer.as_numpy("y").tolist() == [3 * int(number)]
            assert answer.get_response()["model_version"] == number
        assert "has no version" in refused(client, 404, "m", x, model_version="3")


def test_classification(client: Client, server: RunningServer) -> None:
    numbers = np.array([[1, 5, 10, 4], [3, 3, 0, 7]], np.float32)
    inputs = [http_tensor("a", numbers), http_tensor("b", np.zeros((2, 4), np.float32))]
    for binary in (True, False):
        outputs = [http.InferRequestedOutput("sum", binary_data=binary, class_count=2)]
        answer = client.infer("add", inputs, outputs=outputs)
        assert answer.get_output("sum")["datatype"] == "BYTES"
        assert answer.as_numpy("sum").shape == (2, 2)
        assert strings_of(answer.as_numpy("sum")) == ["10.000000:2", "5.000000:1", "7.000000:3", "3.000000:0"]
    text = http_tensor("text", np.array(["a text"], object))
    answer = client.infer("classify", [text], outputs=[http.InferRequestedOutput("scores", class_count=1)])
    (best,) = strings_of(answer.as_numpy("scores"))
    score, _, label = best.split(":")
    told = server.infer("classify", text="a text", top_k=1)["predictions"][0][0]
    assert label == told["label"]
    assert float(score) == pytest.approx(told["score"], abs=1e-6)


@pytest.mark.parametrize("model", ["minilm", "minilm-onnx"])
def test_texts_to_embed_model(model: str, client: Client, server: RunningServer) -> None:
    texts = ["a text", "", "Straße 漢"]
    told = np.array(server.infer(model, text=texts)["embeddings"], np.float32)
    for shape in ((3,), (3, 1), (1, 3)):
        for binary in (True, False):
            answer = client.infer(model, [http_tensor("text", np.array(texts, object).reshape(shape), binary)])
            vectors = answer.as_numpy("embeddings")
            assert vectors.dtype == np.float32
            assert np.abs(vectors - told).max() < 1e-6
    raw = client.infer(model, [http_tensor("text", np.array(texts, object))], parameters={"normalize": False})
    assert np.abs(np.linalg.norm(raw.as_numpy("embeddings"), axis=1) - 1).max() > 0.01
    long = http_tensor("text", np.array(["word " * 600], object))
    assert "tokens, got " in refused(client, 400, model, long, parameters={"truncate": False})


@pytest.mark.parametrize("model", ["classify", "classify-many", "classify-onnx"])
def test_texts_to_classifier(model: str, client: Client, server: RunningServer) -> None:
    labels = server.client.get(f"/models/{model}").json()["version_details"]["1"]["labels"]
    texts = ["late again", "a fast engine"]
    scores = client.infer(model, [http_tensor("text", np.array(texts, object))]).as_numpy("scores")
    for row, predictions in zip(scores, server.infer(model, text=texts)["predictions"], strict=True):
        told = {prediction["label"]: prediction["score"] for prediction in predictions}
        assert row.tolist() == pytest.approx([told[label] for label in labels], abs=1e-6)


def test_graph_of_text_model_takes_tensors(client: Client) -> None:
    ids = np.array([[101, 7592, 102]])
    inputs = [http_tensor(name, array) for name, array in (
        ("input_ids", ids), ("attention_mask", np.ones_like(ids)), ("token_type_ids", np.zeros_like(ids))
    )]  # fmt: skip
    assert client.infer("minilm-onnx", inputs).as_numpy("last_hidden_state").shape == (1, 3, 384)


def test_prompt_to_generating_model(client: Client, server: RunningServer) -> None:
    told = server.infer("tiny-llama", prompt="The engine", max_tokens=8, temperature=0)["text"]
    for shape in ((1,), (1, 1)):
        prompt = http_tensor("text_input", np.array(["The engine"], object).reshape(shape))
        answer = client.infer("tiny-llama", [prompt], parameters={"max_tokens": 8, "temperature": 0, "unknown": "x"})
        assert strings_of(answer.as_numpy("text_output")) == [told]
        several = client.infer("tiny-llama", [prompt], parameters={"max_tokens": 2, "n": 3})
        assert several.as_numpy("text_output").shape == (3,)
    prompt = http_tensor("text_input", np.array(["The engine"], object))
    stream = http_tensor("stream", np.array([True]))
    assert "generate_stream" in refused(client, 501, "tiny-llama", prompt, stream)
    message = refused(client, 400, "tiny-llama", prompt, parameters={"max_tokens": 0})
    assert message.startswith("max_tokens: expected an integer from 1 to 2147483647, got 0")
    long = http_tensor("text_input", np.array(["engine " * 9000], object))
    assert refused(client, 400, "tiny-llama", long).startswith("text_input: ")


def test_priority_and_timeout(client: Client) -> None:
    x = http_tensor("x", np.ones((1, 4), np.float32))
    assert client.infer("slow", [x], priority=1, timeout=60_000_000).as_numpy("y").tolist() == [[1, 1, 1, 1]]
    assert "did not answer within" in refused(client, 504, "slow", x, timeout=20_000)
    assert refused(client, 400, "slow", x, priority=10) == "priority: expected an integer from 0 to 9, got 10"


def test_invalid_requests_refused(client: Client, server: RunningServer) -> None:
    x = http_tensor("x", np.ones((1, 3), np.float32))
    assert 'model "float33" is not registered; there is float32' in refused(client, 404, "float33", x)
    assert refused(client, 400, "fixed", x) == ("inputs.x: expected shape [2, 3] (-1 is free), got [1, 3]")
    assert refused(client, 400, "float64", x) == "inputs.x: expected FP64, got FP32"
    assert refused(client, 400, "gather", http_tensor("indices", np.array([3]))).startswith("inputs: the graph refuses")
    shared = http.InferInput("x", [1], "FP32")
    shared.set_shared_memory("region", 4)
    assert "shared memory is not supported" in refused(client, 501, "float32", shared)
    for path, status in (("/v2/models/float32/infer", 405), ("/v2/models/float32/infer/nothing", 404)):
        answer = server.client.get(path)
        assert answer.status_code == status
        assert isinstance(answer.json()["error"], str)
    assert server.client.post("/v2/models/float32/infer", content=b"").status_code == 400


def test_asyncio_client(server: RunningServer) -> None:
    numbers = np.random.default_rng(4).random((500, 3), dtype=np.float32)

    async def ask() -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            answers = await asyncio.gather(
                *(client.infer("float32", [http_tensor("x", numbers * i, binary=i % 2 == 0)]) for i in range(6))
            )
            for i, answer in enumerate(answers):
                # aiohttp asks for compressed responses by default.
                assert answer.as_numpy("y").tobytes() == (numbers * i).tobytes()
            short = http_tensor("x", np.array([1, 2], np.float32), binary=False)
            outputs = [http.InferRequestedOutput("y", binary_data=False)]
            assert (await client.infer("float32", [short], outputs=outputs)).as_numpy("y").tolist() == [1, 2]
            with pytest.raises(InferenceServerException, match="is not registered") as caught:
                await client.infer("nothing", [short])
            assert caught.value.status() == "404"

    asyncio.run(ask())


def test_predictions_of_version_1_equal_outputs(server: RunningServer) -> None:
    texts = ["Bread rises overnight.", "A roundhouse is where engines wait."]
    answer = server.client.post("/v1/models/minilm:predict", json={"instances": texts})
    assert answer.status_code == 200, answer.text
    # The texts may run alone or together, which changes the order of sums.
    expected = server.infer("minilm", text=texts)["embeddings"]
    np.testing.assert_allclose(answer.json()["predictions"], expected, rtol=0, atol=1e-6)
    assert answer.json().keys() == {"predictions"}
    refused = server.client.post("/v1/models/none:predict", json={"instances": texts})
    assert refused.status_code == 404
    assert refused.json()["error"].startswith("model")
