"""The training of sounds, and the sounds that it makes."""

from pathlib import Path

import numpy as np
import pytest

from app.embedded import copy_sounds
from tools.training import sounds, train_sounds


@pytest.mark.parametrize("label", sounds.SOUNDS)
def test_make_is_deterministic_and_varies(label: str) -> None:
    first, again, other = (sounds.make(label, np.random.default_rng(seed), 0.5) for seed in (5, 5, 6))
    assert first.shape == (8000,)
    assert (first == again).all()
    assert (first != other).any()
    assert np.abs(first).max() <= 1


@pytest.mark.extended
def test_training_writes_a_hugging_face_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    for name, value in (("NUM_TRAINING", 64), ("NUM_HELD_OUT", 16), ("EPOCHS", 1), ("MIN_ACCURACY", 0.0)):
        monkeypatch.setattr(train_sounds, name, value)
    train_sounds.main(["--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == set(copy_sounds.FILES)
    answer = transformers.pipeline("audio-classification", model=str(tmp_path))(np.zeros(8000, np.float32), top_k=8)
    assert {each["label"] for each in answer} == set(train_sounds.LABELS)


def test_poor_training_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(train_sounds, "features_of", lambda *_: (None, None))
    monkeypatch.setattr(train_sounds, "train", lambda *_: torch.nn.Identity())
    monkeypatch.setattr(train_sounds, "accuracy_of", lambda *_: 0.5)
    with pytest.raises(SystemExit, match=r"expected an accuracy of .* got 0.5000; nothing written"):
        train_sounds.main(["--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
