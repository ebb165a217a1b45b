"""The committed folder of sounds, run by transformers' pipeline on sounds that no training has heard, and its copy."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.embedded import copy_sounds
from tools.training import sounds, train_sounds

COUNT = 160


@pytest.fixture(scope="module")
def pipeline() -> Any:
    import transformers

    return transformers.pipeline("audio-classification", model=str(copy_sounds.COMMITTED), dtype="float32")


def labels_of(pipeline: Any, made: list[Any]) -> list[str]:
    answers = pipeline([{"raw": sound, "sampling_rate": sounds.RATE} for sound in made], top_k=1, batch_size=16)
    return [answer[0]["label"] for answer in answers]


def test_committed_model_is_accurate_on_new_sounds(pipeline: Any) -> None:
    made, wanted = train_sounds.sounds_of(COUNT, 77)
    found = labels_of(pipeline, made)
    right = sum(label == train_sounds.LABELS[index] for label, index in zip(found, wanted, strict=True))
    assert right / COUNT >= 0.9


def test_committed_model_knows_plain_sounds(pipeline: Any) -> None:
    """Sounds that `sounds` does not make: written here, without noise, each longer than the model hears."""
    time = np.arange(3 * sounds.RATE) / sounds.RATE
    plain = {
        "silence": 0 * time,
        "noise": np.random.default_rng(5).uniform(-0.5, 0.5, len(time)),
        "tone": 0.5 * np.sin(2 * np.pi * 440 * time),
        "chord": sum(0.2 * np.sin(2 * np.pi * hertz * time) for hertz in (261.6, 329.6, 392.0)),
        "sweep": 0.5 * np.sin(2 * np.pi * (200 * time + 500 * time**2)),
        "clicks": np.where(np.arange(len(time)) % 4000 < 20, 0.7, 0.0),
    }
    found = labels_of(pipeline, [np.asarray(sound, np.float32) for sound in plain.values()])
    assert dict(zip(plain, found, strict=True)) == {label: label for label in plain}


def test_committed_example_is_a_siren(pipeline: Any) -> None:
    with wave.open(str(copy_sounds.COMMITTED / copy_sounds.EXAMPLE)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (sounds.RATE, 1, 2)
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)
    assert labels_of(pipeline, [heard]) == ["siren"]
    config = json.loads((copy_sounds.COMMITTED / "config.json").read_text(encoding="utf-8"))
    assert tuple(config["id2label"].values()) == train_sounds.LABELS


def test_prepare_copies_files_once(tmp_path: Path) -> None:
    assert copy_sounds.prepare(tmp_path)
    assert not copy_sounds.prepare(tmp_path)
    for name in copy_sounds.FILES:
        assert (tmp_path / "sounds" / name).read_bytes() == (copy_sounds.COMMITTED / name).read_bytes()
