"""The training of shapes, and the images that it draws."""

from pathlib import Path
from random import Random

import numpy as np
import onnxruntime
import pytest

from app.embedded import copy_shapes
from tools.training import shape_images, train_shapes


@pytest.mark.parametrize("label", shape_images.SHAPES)
def test_draw_is_deterministic_and_varies(label: str) -> None:
    first, again = (np.asarray(shape_images.draw(label, Random(5))) for _ in range(2))
    other = np.asarray(shape_images.draw(label, Random(6)))
    assert first.shape == (64, 64, 3)
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.extended
def test_training_writes_graph_of_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for name, value in (("NUM_TRAINING", 64), ("NUM_HELD_OUT", 10), ("EPOCHS", 1), ("MIN_ACCURACY", 0.0)):
        monkeypatch.setattr(train_shapes, name, value)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        train_shapes.main(["--out", str(tmp_path)])
        network = train_shapes.train(*train_shapes.images_of(64, train_shapes.SEED))
    finally:
        torch.use_deterministic_algorithms(before)
    assert {path.name for path in tmp_path.iterdir()} == set(copy_shapes.FILES)
    pixels = train_shapes.to_pixels(train_shapes.images_of(10, 3)[0])
    made = onnxruntime.InferenceSession(tmp_path / copy_shapes.GRAPH, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        wanted = network(torch.from_numpy(pixels)).numpy()
    assert np.allclose(made.run(None, {"pixel_values": pixels})[0], wanted, atol=1e-3)


def test_poor_training_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_shapes, "images_of", lambda *_: (None, None))
    monkeypatch.setattr(train_shapes, "train", lambda *_: None)
    monkeypatch.setattr(train_shapes, "accuracy_of", lambda *_: 0.5)
    with pytest.raises(SystemExit, match=r"expected an accuracy of .* got 0.5000; nothing written"):
        train_shapes.main(["--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
