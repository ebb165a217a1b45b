"""The example of docs/pipelines.md over real sockets: detect, then crop, then classify."""

import io
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from tests.e2e.server import ROOT, RunningServer, serving
from tests.support.models import onnx_graphs

QUADRANTS = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]]
RED, GREEN = (255, 0, 0), (0, 200, 0)
GAIN = 4.0


def detector() -> onnx.ModelProto:
    """Build pixels → the four quadrants as boxes, and the mean of the brightest channel of each as its score."""
    nodes = [
        helper.make_node("AveragePool", ["pixels"], ["means"], kernel_shape=[320, 320], strides=[320, 320]),
        helper.make_node("ReduceMax", ["means", "channel"], ["brightest"]),
        helper.make_node("Flatten", ["brightest"], ["scores"]),
        helper.make_node("Unsqueeze", ["scores", "last"], ["column"]),
        helper.make_node("Mul", ["column", "zero"], ["zeros"]),
        helper.make_node("Add", ["zeros", "quadrants"], ["boxes"]),
    ]
    values: dict[str, Any] = {
        "channel": np.array([1], np.int64),
        "last": np.array([2], np.int64),
        "zero": np.zeros((1, 1, 1), np.float32),
        "quadrants": np.array([QUADRANTS], np.float32),
    }
    outputs: Any = [("boxes", "float32", ("n", 4, 4)), ("scores", "float32", ("n", 4))]
    return onnx_graphs.model_of(nodes, [("pixels", "float32", ("n", 3, 640, 640))], outputs, values)


def classifier() -> onnx.ModelProto:
    """Build pixels → GAIN times the mean of red and of green, the logits of a cat and of a dog."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["pixels"], ["means"]),
        helper.make_node("Flatten", ["means"], ["channels"]),
        helper.make_node("MatMul", ["channels", "weights"], ["logits"]),
    ]
    weights = {"weights": GAIN * np.eye(3, 2, dtype=np.float32)}
    pixels: Any = [("pixels", "float32", ("k", 3, 224, 224))]
    return onnx_graphs.model_of(nodes, pixels, [("logits", "float32", ("k", 2))], weights)


def example() -> str:
    """Return the pipeline of the page, as it is written there."""
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```text\n(\[\[pipelines\]\]\nname = \"name-animals\".*?)```", page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("detect")
    config = ""
    for name, graph in (("detector", detector()), ("classifier", classifier())):
        file: Path = onnx_graphs.save(graph, folder / f"{name}.onnx")
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{file}"\n'
    with serving(folder, config + example()) as running:
        yield running.wait_ready()
        running.check_log()


def photo(*colours: tuple[int, int, int] | None) -> str:
    """Return a PNG in base64 with a colour in each quadrant; None is black."""
    pixels = np.zeros((128, 128, 3), np.uint8)
    for colour, (left, top, right, bottom) in zip(colours, (np.array(QUADRANTS) * 128).astype(int), strict=True):
        pixels[top:bottom, left:right] = colour or 0
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return b64encode(file.getvalue()).decode()


def outputs_of(server: RunningServer, *photos: str) -> Any:
    answer = server.client.post("/models/name-animals/infer", json={"inputs": {"photo": list(photos)}})
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]


def odds_of(colour: tuple[int, int, int]) -> float:
    """Return the softmax of the brighter channel."""
    return float(1 / (1 + np.exp(-GAIN * max(colour) / 255)))


def test_animals_are_found_and_named(server: RunningServer) -> None:
    outputs = outputs_of(
        server, photo(GREEN, None, None, RED), photo(None, None, None, None), photo(None, RED, None, None)
    )
    assert outputs["rows"]["data"] == [0, 0, 2]
    np.testing.assert_allclose(outputs["boxes"]["data"], [QUADRANTS[at] for at in (3, 0, 1)], atol=1e-6)
    animals = outputs["animals"]["data"]
    assert [list(row) for row in animals] == [["cat"], ["dog"], ["cat"]]
    odds = [odds_of(RED), odds_of(GREEN), odds_of(RED)]
    np.testing.assert_allclose([next(iter(row.values())) for row in animals], odds, atol=1e-4)


def test_photo_without_animals_has_no_rows(server: RunningServer) -> None:
    outputs = outputs_of(server, photo(None, None, None, None))
    assert outputs["animals"]["data"] == []
    assert outputs["boxes"]["shape"] == [0, 4]
