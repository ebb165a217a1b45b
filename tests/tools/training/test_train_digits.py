"""The training of digits."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tools.training import train_digits


@pytest.mark.extended
def test_training_script_reaches_minimum_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_digits.main(["--out", str(tmp_path / "model.onnx")])
    assert "on 450 held-out images" in capsys.readouterr().out
    _, images, _, labels = train_digits.split()
    made = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert np.mean(made.run(["output_label"], {"image": images})[0] == labels) >= train_digits.MIN_ACCURACY
