"""The committed graph of shapes on images that no training has seen, and its copy."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from app.embedded import copy_shapes
from app.embedded.folder import PreparationError
from tools.training import train_shapes

COUNT = 300


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(copy_shapes.COMMITTED / copy_shapes.GRAPH, providers=["CPUExecutionProvider"])


def test_committed_graph_is_accurate_on_new_images(session: onnxruntime.InferenceSession) -> None:
    images, labels = train_shapes.images_of(COUNT, 77)
    (logits,) = session.run(None, {"pixel_values": train_shapes.to_pixels(images)})
    assert np.mean(logits.argmax(1) == labels) >= train_shapes.MIN_ACCURACY - 0.01


def test_committed_example_is_a_star(session: onnxruntime.InferenceSession) -> None:
    example = Image.open(copy_shapes.COMMITTED / copy_shapes.EXAMPLE).convert("RGB").resize((64, 64))
    pixels = train_shapes.to_pixels(np.asarray(example)[None])
    (logits,) = session.run(None, {"pixel_values": pixels})
    assert train_shapes.LABELS[int(logits[0].argmax())] == "star"
    labels = json.loads((copy_shapes.COMMITTED / copy_shapes.CONFIG).read_text())["id2label"]
    assert tuple(labels.values()) == train_shapes.LABELS


def test_prepare_copies_files_once(tmp_path: Path) -> None:
    assert copy_shapes.prepare(tmp_path)
    assert not copy_shapes.prepare(tmp_path)
    for name in copy_shapes.FILES:
        assert (tmp_path / "shapes" / name).read_bytes() == (copy_shapes.COMMITTED / name).read_bytes()
    with pytest.raises(PreparationError, match=r"expected model\.onnx, .* got none"):
        copy_shapes.prepare(tmp_path, tmp_path / "absent")
