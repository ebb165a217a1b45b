"""Images over every protocol, with real clients: one answer, equal to that of Pillow and ONNX Runtime."""

import io
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnx
import openai
import pytest
from onnx import TensorProto, helper
from PIL import Image

from app.cli.commands import main
from app.embedded.copy_shapes import COMMITTED, EXAMPLE, GRAPH
from frameworks.types import Array
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, run_examples, serving
from tests.e2e.triton_clients import GRPC_KINDS, KINDS, grpc_tensor, http_tensor, triton_client
from tests.support.models.onnx_graphs import save, session

FILE = (COMMITTED / EXAMPLE).read_bytes()
LABELS = list(json.loads((COMMITTED / "config.json").read_text())["id2label"].values())
SIDE = 8
TOLERANCE = 2e-3
"""Of probabilities and means: resizing rounds each pixel to one of 256 values."""

Modes = {"alone": "", "workers": "[server]\nworkers = 2\n", "process": '[performance]\nisolation = "process"\n'}


def means(output: str) -> onnx.ModelProto:
    """Build a graph of images: the mean of each channel, float32 [rows, 3]."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], [output]),
    ]
    pixels = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])
    mean = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "means", [pixels], [mean])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def entries(folder: Path) -> str:
    """Save models of three tasks; the input of two graphs has the name of the input for files."""
    text = f'[[models.onnx_models]]\nname = "shapes"\npath = "{COMMITTED}"\ncache = true\n'
    for name, output in (("vectors", "image_embeds"), ("tensors", "means")):
        (folder / name).mkdir()
        save(means(output), folder / name)
        text += f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}"\n[models.onnx_models.image]\n'
    twins = f'[[models.onnx_models]]\nname = "twins"\npath = "{folder / "tensors"}"\n[models.onnx_models.image]\n'
    return text + twins + 'labels = ["crane", "star", "crane"]\n'


@pytest.fixture(scope="module", params=["alone", pytest.param("workers", marks=pytest.mark.extended), "process"])
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("images")
    config = Modes[request.param] + entries(folder) + '[logging]\nrequests = "all"\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def probabilities(file: bytes) -> Array:
    """Return what the model says, by Pillow and ONNX Runtime alone: float32 [10], in the order of LABELS."""
    image = Image.open(io.BytesIO(file)).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR)
    pixels = (np.asarray(image, np.float32) / 255 - 0.5) / 0.25
    (logits,) = session(COMMITTED / GRAPH).run(None, {"pixel_values": pixels.transpose(2, 0, 1)[None]})
    exponents = np.exp(logits[0] - logits[0].max())
    shares: Array = exponents / exponents.sum()
    return shares


def channel_means(file: bytes) -> Array:
    image = Image.open(io.BytesIO(file)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    mean: Array = (np.asarray(image, np.float64) / 255).mean((0, 1))
    return mean


def encoded(kind: str, side: int = 90) -> bytes:
    """Return another image: a gradient, in a format."""
    ramp = np.linspace(0, 255, side * side * 3).reshape(side, side, 3).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, kind)
    return file.getvalue()


def text(file: bytes) -> str:
    return b64encode(file).decode()


def post(server: RunningServer, path: str, **request: Any) -> Any:
    response = server.client.post(path, **request)
    assert response.status_code == 200, response.text
    return response.json()


def test_start_prints_line_with_image(images: RunningServer) -> None:
    [(line, answer)] = [each for each in run_examples(images) if '"image"' in each[0]]
    assert "/infer" in line
    assert sorted(each["label"] for each in answer["predictions"][0]) == sorted(LABELS)


def check_star(labels: list[dict[str, Any]], count: int = 10) -> None:
    """Check the prediction for FILE."""
    assert len(labels) == count
    assert labels[0]["label"] == "star"
    wanted = dict(zip(LABELS, probabilities(FILE), strict=True))
    for each in labels:
        assert abs(each["score"] - wanted[each["label"]]) < TOLERANCE
    assert labels == sorted(labels, key=lambda each: -each["score"])


def test_infer_classifies_image_in_every_form(images: RunningServer) -> None:
    url = "data:image/jpeg;base64," + text(FILE)
    path = "/models/shapes/infer"
    jpeg = {"content-type": "image/jpeg"}
    answers = [
        post(images, path, json={"image": text(FILE)}),
        post(images, "/infer", json={"model_name": "shapes", "image": url, "timeout_ms": 60_000}),
        post(images, "/models/shapes/versions/1/infer", content=FILE, headers=jpeg),
        post(images, "/infer?model_name=shapes&version=1", content=FILE, headers=jpeg),
        post(images, path, files={"image": FILE}),
        post(images, "/inference", files={"image": ("a.jpg", FILE, "image/jpeg")}, data={"model_name": "shapes"}),
    ]
    for answer in answers:
        assert answer.keys() == {"model_name", "version", "predictions", "latency_ms"}
        (labels,) = answer["predictions"]
        check_star(labels)
    (labels,) = post(images, f"{path}?top_k=2", content=FILE, headers=jpeg)["predictions"]
    check_star(labels, 2)


def test_infer_answers_several_images_in_order(images: RunningServer) -> None:
    png, webp = encoded("PNG"), encoded("WEBP")
    several = post(images, "/models/shapes/infer", json={"image": [text(png), text(FILE), text(webp)], "top_k": 1})
    form = [("image", file) for file in (png, FILE, webp)]
    assert (
        post(images, "/models/shapes/infer", files=form, data={"top_k": "1"})["predictions"] == several["predictions"]
    )
    assert several["predictions"][1][0]["label"] == "star"
    best = probabilities(png)
    assert several["predictions"][0][0]["label"] == LABELS[int(best.argmax())]
    assert abs(several["predictions"][0][0]["score"] - best.max()) < TOLERANCE


def test_equal_labels_keep_both_scores(images: RunningServer) -> None:
    """The last channel is the highest one, so falling scores and the order of the labels differ."""
    pixels = np.full((SIDE, SIDE, 3), (10, 100, 200), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    answer = httpx.post(
        f"{images.url}/models/twins/infer", content=content.getvalue(), headers={"content-type": "image/png"}
    ).json()
    assert [each["label"] for each in answer["predictions"][0]] == ["crane", "star", "crane"]
    scores = [each["score"] for each in answer["predictions"][0]][::-1]
    text = b64encode(content.getvalue()).decode()
    inputs = [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}]
    best = [{"name": "scores", "parameters": {"classification": 2}}]
    v2 = httpx.post(f"{images.url}/v2/models/twins/infer", json={"inputs": inputs}).json()
    assert v2["outputs"][0]["data"] == pytest.approx(scores)
    v2 = httpx.post(f"{images.url}/v2/models/twins/infer", json={"inputs": inputs, "outputs": best}).json()
    assert [each.partition(":")[2] for each in v2["outputs"][0]["data"]] == ["2:crane", "1:star"]
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    body = {"model": "twins", "messages": [{"role": "user", "content": [part]}]}
    vllm = httpx.post(f"{images.url}/v1/classify", json=body).json()
    assert vllm["data"][0]["probs"] == pytest.approx(scores)


def test_infer_returns_embeddings_or_outputs_by_task(images: RunningServer) -> None:
    png = encoded("PNG")
    answer = post(images, "/models/vectors/infer", json={"image": [text(png), text(FILE)], "normalize": False})
    assert answer.keys() == {"model_name", "version", "embeddings", "latency_ms"}
    assert np.allclose(answer["embeddings"], [channel_means(png), channel_means(FILE)], atol=TOLERANCE)
    unit = post(images, "/models/vectors/infer", files={"image": png})["embeddings"]
    assert np.isclose(np.linalg.norm(unit), 1, atol=1e-6)
    answer = post(images, "/models/tensors/infer", files={"image": png}, data={"outputs": "means"})
    assert answer["outputs"]["means"]["shape"] == [1, 3]
    assert np.allclose(answer["outputs"]["means"]["data"], [channel_means(png)], atol=TOLERANCE)


def test_tensors_are_still_served(images: RunningServer) -> None:
    pixels = np.full((2, 3, SIDE, SIDE), 0.25).tolist()
    assert np.allclose(images.infer("vectors", input_data=pixels)["output_data"], 0.25)
    with triton_client(images, "http") as client:
        tensor = http_tensor("image", np.full((1, 3, SIDE, SIDE), 0.5, np.float32))
        outputs = client.infer("vectors", [tensor])
        assert np.allclose(outputs.as_numpy("image_embeds"), 0.5)


@pytest.mark.parametrize("kind", [*KINDS, *GRPC_KINDS])
def test_triton_client_sends_files(images: RunningServer, kind: str) -> None:
    def make(array: Array) -> Any:
        return grpc_tensor("image", array, "BYTES") if kind in GRPC_KINDS else http_tensor("image", array)

    files = np.array([FILE, encoded("PNG")], dtype=object)
    with triton_client(images, kind) as client:
        scores = client.infer("shapes", [make(files)]).as_numpy("scores")
        assert np.allclose(scores, [probabilities(each) for each in files], atol=TOLERANCE)
        column = client.infer("vectors", [make(files[:, None])], parameters={"normalize": False})
        assert np.allclose(column.as_numpy("embeddings"), [channel_means(each) for each in files], atol=TOLERANCE)
        assert np.allclose(
            client.infer("tensors", [make(files)]).as_numpy("means"),
            [channel_means(each) for each in files],
            atol=TOLERANCE,
        )


def test_open_inference_json_takes_base64(images: RunningServer) -> None:
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text(FILE)]}
    outputs = [{"name": "scores", "parameters": {"classification": 1}}]
    answer = post(images, "/v2/models/shapes/infer", json={"inputs": [tensor], "outputs": outputs})
    (best,) = answer["outputs"][0]["data"]
    assert best.endswith(f":{LABELS.index('star')}:star")
    metadata = images.client.get("/v2/models/shapes").json()
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]


def test_openai_client_embeds_image_of_messages(images: RunningServer) -> None:
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text(encoded('PNG'))}"}}]
    body = {"messages": [{"role": "user", "content": content}], "normalize": False}
    with openai.OpenAI(base_url=f"{images.url}/v1", api_key="none") as client:
        # As vLLM's examples do: the client has no method for messages.
        answer = client.post(
            "/embeddings", cast_to=openai.types.CreateEmbeddingResponse, body={"model": "vectors", **body}
        )
    assert np.allclose(answer.data[0].embedding, channel_means(encoded("PNG")), atol=TOLERANCE)
    classified = post(images, "/v1/classify", json={"model": "shapes", "messages": body["messages"]})
    assert np.allclose(classified["data"][0]["probs"], probabilities(encoded("PNG")), atol=TOLERANCE)


def test_infinity_and_cohere_embed_images(images: RunningServer) -> None:
    url = f"data:image/jpeg;base64,{b64encode(FILE).decode()}"
    vector = httpx.post(f"{images.url}/models/vectors/infer", json={"image": url}).json()["embeddings"][0]
    infinity = httpx.post(
        f"{images.url}/embeddings", json={"model": "vectors", "input": [url], "modality": "image"}
    ).json()
    assert infinity["data"][0]["embedding"] == pytest.approx(vector, abs=1e-6)
    cohere = httpx.post(
        f"{images.url}/v2/embed", json={"model": "vectors", "images": [url], "input_type": "image"}
    ).json()
    assert cohere["embeddings"]["float"][0] == pytest.approx(vector, abs=1e-6)
    damaged = f"data:image/jpeg;base64,{b64encode(FILE[:200]).decode()}"
    refused = httpx.post(f"{images.url}/v2/embed", json={"model": "vectors", "images": [url, damaged]})
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("images[1]: ")


def test_cached_answer_is_of_equal_image_only(images: RunningServer) -> None:
    before = images.sample("roundhouse_cache_hits_total", model="shapes")
    file = encoded("PNG", 71)
    first, second = (post(images, "/models/shapes/infer", files={"image": file}) for _ in range(2))
    other = post(images, "/models/shapes/infer", files={"image": encoded("PNG", 73)})
    assert first["predictions"] == second["predictions"] != other["predictions"]
    assert images.sample("roundhouse_cache_hits_total", model="shapes") == before + 1


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"no image", "expected a file in JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, got other bytes"),
        (FILE[:700], "image"),
        (bytes(4) + b"ftypheic" + bytes(20), "expected a file in JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "expected a file in JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"),
    ],
)
def test_bad_file_is_refused_by_name(images: RunningServer, file: bytes, words: str) -> None:
    jpeg = {"content-type": "image/jpeg"}
    for request in ({"content": file, "headers": jpeg}, {"files": {"image": file}}, {"json": {"image": text(file)}}):
        response = images.client.post("/models/shapes/infer", **request)
        assert words in assert_refused(response, 400, "invalid_input")
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text(file)]}
    response = images.client.post("/v2/models/shapes/infer", json={"inputs": [tensor]})
    assert response.status_code == 400
    assert response.json()["error"].startswith("inputs.image")
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text(file)}"}}]
    body = {"model": "vectors", "messages": [{"role": "user", "content": content}]}
    response = images.client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("image[0]: ")


def test_url_is_refused_by_every_protocol(images: RunningServer) -> None:
    url = f"{images.url}/health"
    response = images.client.post("/models/shapes/infer", json={"image": url})
    assert "the server fetches no URL" in assert_refused(response, 400, "invalid_input")
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [url]}
    response = images.client.post("/v2/models/shapes/infer", json={"inputs": [tensor]})
    assert "fetches no URL" in response.json()["error"]
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    response = images.client.post("/v1/embeddings", json={"model": "vectors", **body})
    assert "fetches no URL" in response.json()["error"]["message"]


@pytest.mark.parametrize("form", ["GIF", "BMP", "TIFF", "AVIF"])
def test_format_is_read_without_its_type(images: RunningServer, form: str) -> None:
    file = encoded(form)
    answers = [
        images.client.post("/models/shapes/infer?top_k=3", content=file, headers=headers).json()["predictions"]
        for headers in ({"content-type": f"image/{form.lower()}"}, {"content-type": "application/octet-stream"}, {})
    ]
    assert answers[0] == answers[1] == answers[2]
    binary = {"content-type": "application/octet-stream"}
    response = images.client.post("/models/shapes/infer", content=b"hello", headers=binary)
    assert_refused(response, 415, "unsupported_media_type", "other bytes")


def test_other_bodies_are_refused(images: RunningServer) -> None:
    def refused(status: int, code: str, **request: Any) -> str:
        message: str = assert_refused(images.client.post("/models/shapes/infer", **request), status, code)
        return message

    assert "image/heic" in refused(415, "unsupported_media_type", content=b"x", headers={"content-type": "image/heic"})
    refused(415, "unsupported_media_type", data={"image": "x"})
    assert refused(400, "unknown_field", files={"photo": FILE}).startswith("photo: unknown field")
    assert "this model's task is classify; send the field image" in refused(400, "invalid_input", json={"text": "a"})
    page = {"origin": "https://page.example"}
    refused(403, "forbidden", files={"image": FILE}, headers=page)
    response = images.client.post("/v1/rerank", json={"model": "shapes", "query": "a", "documents": ["b"]})
    assert "expected a model that reads texts" in response.json()["error"]["message"]


def test_models_and_command_line_know_images(images: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    model = images.client.get("/models/shapes").json()
    assert model["task"] == "classify"
    assert model["image"] == {"height": 64, "width": 64, "labels": 10, "embedding_size": None}
    assert model["version_details"]["1"]["labels"] == LABELS
    assert images.client.get("/models/vectors").json()["image"]["embedding_size"] == 3
    file = str(COMMITTED / EXAMPLE)
    assert main(["infer", "shapes", "--image", file, file, "--top-k", "1", "--url", images.url]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [labels[0]["label"] for labels in predictions] == ["star", "star"]
    assert main(["infer", "shapes", "--image", f"{file}.absent", "--url", images.url]) == 2
    assert "--image: expected a file" in capsys.readouterr().err


def test_bench_sends_images(images: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(FILE)
    for more in ([], ["--images", str(tmp_path)], ["--images", str(tmp_path), "--rows", "2"]):
        result = tmp_path / "result.json"
        words = ["bench", "--url", images.url, "--model", "shapes", "--requests", "3", "--distinct", "2", *more]
        assert main([*words, "--json", str(result)]) == 0
        assert json.loads(result.read_text())["requests"]["succeeded"] == 3


def test_run_sends_images_to_server(images: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(FILE)
    output = tmp_path / "labels.jsonl"
    words = ["run", "shapes", str(tmp_path / "photos"), str(output), "--images", "--top-k", "1", "--url", images.url]
    assert main(words) == 0
    assert json.loads(output.read_text())["label"] == "star"


def test_grpc_error_names_input(images: RunningServer) -> None:
    with triton_client(images, "grpc") as client, pytest.raises(Exception, match=r"inputs\.image") as caught:
        client.infer("shapes", [grpc_tensor("image", np.array([b"no image"], dtype=object), "BYTES")])
    assert "JPEG" in str(caught.value)
    assert grpc.StatusCode.INVALID_ARGUMENT.name in str(caught.value)


def test_form_arrives_in_pieces(images: RunningServer) -> None:
    request = httpx.Request("POST", images.url, files={"image": FILE})
    body, kind = request.read(), request.headers["content-type"]
    pieces = (body[at : at + 100] for at in range(0, len(body), 100))
    answer = post(images, "/models/shapes/infer", content=pieces, headers={"content-type": kind})
    check_star(answer["predictions"][0])
