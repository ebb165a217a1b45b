"""Pipelines over real sockets: every protocol, one and two workers, deadlines, unloads, tenants, images."""

import io
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import helper
from PIL import Image

from tests.e2e.conftest import Start
from tests.e2e.server import GRPC_PORT, MODELS, RunningServer, free_port, serving
from tests.e2e.triton_clients import triton_client
from tests.support.keyring import make_key, write_keys
from tests.support.models import onnx_graphs
from tests.support.models.onnx_costly_graphs import slow

RNG = np.random.default_rng(5)
FIRST, SECOND = (RNG.normal(size=size).astype(np.float32) for size in ((4, 3), (3, 5)))
X = RNG.normal(size=(2, 4)).astype(np.float32)
LABELS = ["ant", "bee", "cat", "dog", "eel"]
PIPELINES = f"""
[[pipelines]]
name = "animals"
inputs = ["x"]
outputs = {{ animals = "names", labels = "names.labels", odds = "odds" }}
steps = [
    {{ name = "one", model = "first", inputs = {{ x = "x" }} }},
    {{ name = "two", model = "second", inputs = {{ x = "one" }} }},
    {{ name = "odds", builtin = "softmax", inputs = {{ values = "two" }} }},
    {{ name = "names", builtin = "labels", labels = {LABELS}, top_k = 2, inputs = {{ scores = "odds" }} }},
]
[[pipelines]]
name = "unit"
inputs = ["text"]
outputs = {{ embeddings = "unit" }}
steps = [
    {{ name = "embed", model = "minilm", normalize = false, inputs = {{ text = "text" }} }},
    {{ name = "unit", builtin = "normalize", inputs = {{ values = "embed" }} }},
]
[[pipelines]]
name = "pieces"
inputs = ["text"]
outputs = {{ pieces = "cut", ids = "tokens.input_ids", rows = "cut.rows" }}
steps = [
    {{ name = "cut", builtin = "chunk", chunk_size = 8, inputs = {{ text = "text" }} }},
    {{ name = "tokens", builtin = "tokenize", model = "minilm", inputs = {{ text = "cut" }} }},
]
[[pipelines]]
name = "crops"
inputs = ["image", "boxes"]
outputs = {{ names = "shape", scores = "shape.scores" }}
steps = [
    {{ name = "cut", builtin = "crop", inputs = {{ image = "image", boxes = "boxes" }} }},
    {{ name = "shape", model = "shapes", inputs = {{ image = "cut" }} }},
]
[[pipelines]]
name = "pixels"
inputs = ["photo"]
outputs = {{ shapes = "shape" }}
steps = [{{ name = "shape", model = "shapes", inputs = {{ image = "photo" }} }}]
"""


def product(weights: Any) -> Any:
    columns, outputs = weights.shape
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return onnx_graphs.model_of(
        nodes, [("x", "float32", ("n", columns))], [("y", "float32", ("n", outputs))], {"w": weights}
    )


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("pipelines")
    models = model_entries(folder, first='isolation = "process"', second='load = "lazy"')
    config = f"[server]\nworkers = {request.param}\n{PIPELINES}{models}"
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def model_entries(folder: Path, first: str = "", second: str = "") -> str:
    """Save and name the models of PIPELINES. `first`, `second`: further keys of these models."""
    for name, weights in (("first", FIRST), ("second", SECOND)):
        onnx_graphs.save(product(weights), folder / f"{name}.onnx")
    _save_shapes(folder / "shapes")
    models = (
        ("first", folder / "first.onnx", first),
        ("second", folder / "second.onnx", second),
        ("minilm", MODELS / "minilm-onnx", ""),
        ("shapes", folder / "shapes", ""),
    )
    return "".join(f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\n{keys}\n' for name, path, keys in models)


def _save_shapes(folder: Path) -> None:
    """Copy the embedded classifier of images."""
    folder.mkdir()
    for name in ("model.onnx", "config.json"):
        shutil.copy(MODELS / "shapes" / name, folder)
    prepared = json.loads((MODELS / "shapes" / "preprocessor_config.json").read_text(encoding="utf-8"))
    prepared["image_processor_type"] = "ViTImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared), encoding="utf-8")


def odds(x: Any) -> Any:
    powers = np.exp(x @ FIRST @ SECOND)
    return powers / powers.sum(axis=1, keepdims=True)


def infer(server: RunningServer, name: str, **body: Any) -> Any:
    answer = server.client.post(f"/models/{name}/infer", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestProtocols:
    def test_infer_equals_the_steps_by_hand(self, server: RunningServer) -> None:
        answer = server.client.post("/infer", json={"model_name": "animals", "inputs": {"x": X.tolist()}})
        outputs = answer.json()["outputs"]
        np.testing.assert_allclose(outputs["odds"]["data"], odds(X), rtol=1e-4)
        best = np.argsort(-odds(X), axis=1)[:, :2]
        assert outputs["labels"]["data"] == [[LABELS[at] for at in row] for row in best]
        assert [list(row) for row in outputs["animals"]["data"]] == outputs["labels"]["data"]
        timing = answer.headers["server-timing"]
        assert [f"step-{name};dur=" in timing for name in ("one", "two", "odds", "names")] == [True] * 4

    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_triton_clients_get_tensors(self, server: RunningServer, kind: str) -> None:
        transport = tritonclient.http if kind == "http" else tritonclient.grpc
        with triton_client(server, kind) as client:
            given = transport.InferInput("x", [2, 4], "FP32")
            given.set_data_from_numpy(X)
            wanted = [transport.InferRequestedOutput(name) for name in ("odds", "labels")]
            answer = client.infer("animals", [given], outputs=wanted)
            np.testing.assert_allclose(answer.as_numpy("odds"), odds(X), rtol=1e-4)
            assert answer.as_numpy("labels").shape == (2, 2)
            metadata = client.get_model_metadata("animals")
            name = metadata["platform"] if kind == "http" else metadata.platform
            assert name == "pipeline"

    def test_embeddings_equal_those_of_the_model(self, server: RunningServer) -> None:
        texts = ["Cats sleep.", "Dogs run in the park."]
        direct = infer(server, "minilm", text=texts, normalize=True)["embeddings"]
        np.testing.assert_allclose(infer(server, "unit", text=texts)["embeddings"], direct, atol=1e-5)
        openai = server.client.post("/v1/embeddings", json={"model": "unit", "input": texts}).json()
        np.testing.assert_allclose([each["embedding"] for each in openai["data"]], direct, atol=1e-5)

    def test_text_of_tensor_pipeline_has_outputs(self, server: RunningServer) -> None:
        outputs = infer(server, "pieces", text=["one two three", "four"])["outputs"]
        assert outputs["pieces"]["data"] == ["one two", "three", "four"]
        assert outputs["rows"]["data"] == [0, 0, 1]
        tokens = server.client.post("/v1/tokenize", json={"model": "minilm", "prompt": "one two"}).json()["tokens"]
        assert outputs["ids"]["data"][0] == tokens

    def test_models_describe_the_pipeline(self, server: RunningServer) -> None:
        found = server.client.get("/models/unit").json()
        assert (found["framework"], found["task"], found["state"]) == ("pipeline", "embed", "ready")
        assert found["inputs"] == [{"name": "text", "dtype": "string", "shape": [-1]}]

    def test_metrics_count_each_step(self, server: RunningServer) -> None:
        infer(server, "unit", text="count me")
        assert server.sample("roundhouse_pipeline_step_seconds_count", model="unit", step="embed") >= 1

    def test_wrong_boxes_name_the_step(self, server: RunningServer) -> None:
        body = {"inputs": {"image": [_file(_photo())] * 2, "boxes": [[0.0, 0.0, 1.0, 1.0]]}}
        answer = server.client.post("/models/crops/infer", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == (
            'rows: expected the row of each box beside 2 images, got none (step "cut")'
        )

    def test_crops_are_classified_as_files_of_them(self, server: RunningServer) -> None:
        photo = _photo()
        boxes = [[0.0, 0.0, 64.0, 64.0], [32.0, 16.0, 96.0, 80.0]]
        outputs = infer(server, "crops", inputs={"image": [_file(photo)], "boxes": boxes})["outputs"]
        files = [_file(photo.crop(tuple(map(int, box)))) for box in boxes]  # type: ignore[arg-type]
        direct = infer(server, "shapes", image=files)["predictions"]
        for row, expected in zip(outputs["names"]["data"], direct, strict=True):
            assert list(row) == [each["label"] for each in expected]
            np.testing.assert_allclose(list(row.values()), [each["score"] for each in expected], atol=1e-5)
        empty = infer(server, "crops", inputs={"image": [_file(photo)], "boxes": {"data": [], "shape": [0, 4]}})
        assert empty["outputs"]["names"]["data"] == []

    def test_image_field_answers_with_predictions(self, server: RunningServer) -> None:
        file = _file(_photo())
        assert infer(server, "pixels", image=file)["predictions"] == infer(server, "shapes", image=file)["predictions"]


def _photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (96, 128, 3), dtype=np.uint8))


def _file(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return b64encode(file.getvalue()).decode()


def _entry(folder: Path, name: str, graph: Any, keys: str = "") -> str:
    onnx_graphs.save(graph, folder / f"{name}.onnx")
    return f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder}/{name}.onnx"\n{keys}\n'


PAIR = """
[[pipelines]]
name = "pair"
inputs = ["x"]
outputs = { y = "two" }
steps = [
    { name = "one", model = "secret", inputs = { x = "x" } },
    { name = "two", builtin = "softmax", inputs = { values = "one" } },
]
"""


class TestOperation:
    @pytest.mark.extended
    def test_deadline_ends_a_pipeline(self, start: Start, tmp_path: Any) -> None:
        server = start(_entry(tmp_path, "secret", slow(2000)) + PAIR).wait_ready()
        body = {"inputs": {"x": X[:1].tolist()}, "timeout_ms": 100}
        answer = server.client.post("/models/pair/infer", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert "secret" not in answer.text

    @pytest.mark.extended
    def test_unloaded_model_refuses_until_loaded(self, start: Start, tmp_path: Any) -> None:
        server = start(_entry(tmp_path, "secret", product(FIRST)) + PAIR).wait_ready()
        assert infer(server, "pair", inputs={"x": X.tolist()})["outputs"]["y"]["shape"] == [2, 3]
        server.client.post("/models/secret/unload")
        answer = server.client.post("/models/pair/infer", json={"inputs": {"x": X.tolist()}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unloaded")
        assert answer.json()["error"]["message"] == 'step "one": its model was unloaded; ask an operator to load it'
        server.client.post("/models/secret/load")
        infer(server, "pair", inputs={"x": X.tolist()})

    def test_tenant_needs_the_pipeline_only(self, start: Start, tmp_path: Any) -> None:
        key = make_key("red")
        write_keys(tmp_path / "keys.toml", key)
        config = _entry(tmp_path, "secret", product(FIRST)) + PAIR
        config += '[auth]\nmode = "required"\n[[auth.tenants]]\nname = "red"\nmodels = ["pair"]\n'
        server = start(config).wait_ready()
        server.client.headers.update(key.headers)
        assert infer(server, "pair", inputs={"x": X.tolist()})["outputs"]["y"]["shape"] == [2, 3]
        assert server.client.post("/models/secret/infer", json={"input_data": X.tolist()}).status_code == 404
        assert "secret" not in server.client.get("/models").text

    @pytest.mark.extended
    def test_types_that_do_not_fit_fail_the_pipeline(self, start: Start, tmp_path: Any) -> None:
        wrong = PAIR.replace('builtin = "softmax", inputs = { values', 'model = "other", inputs = { x')
        config = _entry(tmp_path, "secret", product(FIRST)) + _entry(tmp_path, "other", product(FIRST))
        server = start(config + wrong)
        server.wait_for_log("model failed to load", model="pair")
        found = server.client.get("/models/pair").json()
        assert found["state"] == "failed"
        assert "steps[1].inputs.x: expected float32[-1, 4], got float32[-1, 3]" in found["reason"]
