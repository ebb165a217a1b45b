"""The committed graph of digits on scikit-learn's held-out images, and its copy."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app.embedded import copy_digits, examples
from app.embedded.folder import PreparationError
from tools.training import train_digits


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(copy_digits.COMMITTED, providers=["CPUExecutionProvider"])


def test_committed_graph_is_accurate_on_held_out_images(session: onnxruntime.InferenceSession) -> None:
    _, images, _, labels = train_digits.split()
    (found,) = session.run(["output_label"], {"image": images})
    assert len(labels) == 450
    assert np.mean(found == labels) >= train_digits.MIN_ACCURACY


def test_committed_graph_has_zip_map(session: onnxruntime.InferenceSession) -> None:
    (declared,) = session.get_inputs()
    assert (declared.name, declared.type, declared.shape[1:]) == ("image", "tensor(float)", [64])
    assert [x.type for x in session.get_outputs()] == ["tensor(int64)", "seq(map(int64,tensor(float)))"]
    image = np.array(examples.IMAGE_OF_3, dtype=np.float32).reshape(1, 64)
    labels, (probabilities, nothing) = session.run(None, {"image": np.concatenate([image, 0 * image])})
    assert labels.dtype == np.int64
    assert labels[0] == 3
    assert list(probabilities) == list(range(10))
    assert probabilities[3] > 0.9
    assert sum(nothing.values()) == pytest.approx(1.0, abs=1e-5)


def test_prepare_copies_again_after_change(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(b"first")
    assert copy_digits.prepare(tmp_path, source)
    assert not copy_digits.prepare(tmp_path, source)
    source.write_bytes(b"other")
    assert copy_digits.prepare(tmp_path, source)
    assert (tmp_path / "digits" / "model.onnx").read_bytes() == b"other"


def test_prepare_names_missing_committed_file(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match=r"expected the file \S+absent\.onnx, got none"):
        copy_digits.prepare(tmp_path, tmp_path / "absent.onnx")
