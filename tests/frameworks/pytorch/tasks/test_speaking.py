"""Text to speech by VITS models, against transformers' own model with the same seed."""

import json
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import VitsModel, VitsTokenizer

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.media.wav import read_float_wav
from frameworks.pytorch.tasks.model import TaskModel
from frameworks.tasks.types import TaskItem
from frameworks.types import TASK_OUTPUT, TaskBatch
from tests.frameworks.models.loading import load_torch_model
from tests.support.models.tasks.speaking import save_speaking_model

TEXTS = ["a", "the sun is warm today", "Numbers like 12, and CAPITALS; are read as the model reads them!"]


def load(folder: Path, **entry: Any) -> TaskModel:
    model = load_torch_model(folder, **entry)
    assert isinstance(model, TaskModel)
    model.warm_up()
    return model


def items_of(model: TaskModel, text: str, **parameters: Any) -> list[TaskItem]:
    assert model.pipeline is not None
    return model.pipeline.prepare({"text": text}, parameters)


def speak(model: TaskModel, text: str, **parameters: Any) -> Any:
    """Return samples, float32 [samples]."""
    assert model.pipeline is not None
    outputs: Any = model.infer(TaskBatch(items_of(model, text, **parameters)))[TASK_OUTPUT]
    answer = model.pipeline.finish(outputs.tolist(), parameters)
    samples, rate_hz = read_float_wav(b64decode(answer["audio"]))
    assert rate_hz == answer["sampling_rate"] == 16_000
    return samples


def theirs(folder: Path, text: str, seed: int, **options: Any) -> Any:
    reference, tokenizer = VitsModel.from_pretrained(folder).eval(), VitsTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    with torch.no_grad():
        return reference(**tokenizer(text, return_tensors="pt"), **options).waveform[0].numpy()


@pytest.mark.parametrize(
    ("num_speakers", "config"),
    [(1, {}), (3, {}), (1, {"use_stochastic_duration_prediction": False}), (1, {"speaking_rate": 0.8})],
)
def test_sound_equals_that_of_transformers(tmp_path: Path, num_speakers: int, config: dict[str, Any]) -> None:
    model = load(save_speaking_model(tmp_path, num_speakers, **config))
    assert model.spec.task == "text-to-audio"
    options: list[dict[str, Any]] = [{}, {"speaking_rate": 0.7}]
    options += [{"speaker_id": 0}, {"speaker_id": 2, "speaking_rate": 1.6}] if num_speakers > 1 else []
    sounds = []
    for seed, each in enumerate(options):
        for text in TEXTS:
            found = speak(model, text, seed=seed, **each)
            np.testing.assert_allclose(found, theirs(tmp_path, text, seed, **each), rtol=0, atol=1e-5)
            sounds.append(found.tobytes())
    assert len(set(sounds)) == len(sounds), "the model speaks all texts alike"


def test_pipeline_of_transformers_returns_same_sound(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path))
    pipeline: Any = transformers.pipeline("text-to-audio", model=str(tmp_path), device="cpu")
    torch.manual_seed(11)
    right = pipeline(TEXTS[1], forward_params={"speaking_rate": 1.2})
    assert right["sampling_rate"] == 16_000
    found = speak(model, TEXTS[1], seed=11, speaking_rate=1.2)
    np.testing.assert_allclose(found, right["audio"].reshape(-1), rtol=0, atol=1e-5)


def test_sounds_without_seed_differ(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path))
    torch.manual_seed(1)
    first = speak(model, TEXTS[1])
    torch.manual_seed(1)
    second = speak(model, TEXTS[1])
    assert first.shape != second.shape or not np.array_equal(first, second)


def test_instances_on_threads_keep_their_seeds(tmp_path: Path) -> None:
    save_speaking_model(tmp_path)
    model = load(tmp_path)
    right = {seed: theirs(tmp_path, TEXTS[1], seed, speaking_rate=1 + seed / 8) for seed in range(8)}

    def run(seed: int) -> Any:
        # One module, as several instances have it.
        return speak(model, TEXTS[1], seed=seed, speaking_rate=1 + seed / 8)

    with ThreadPoolExecutor(4) as threads:
        for seed, found in zip(range(8), threads.map(run, range(8)), strict=True):
            np.testing.assert_allclose(found, right[seed], rtol=0, atol=1e-5)


def test_texts_never_share_a_run(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path))
    assert [item.shape for text in TEXTS for item in items_of(model, text)] == [None] * len(TEXTS)
    assert model.spec.unbatched_because == "each input has noise of its own"


def test_model_without_latin_letters_is_served(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path, letters=" \u0430\u0431\u0432"))
    assert len(speak(model, "\u0430\u0431\u0432 \u0410", seed=1)) > 0
    with pytest.raises(InvalidInput, match="text: expected characters that the model speaks"):
        items_of(model, "abc")


@pytest.mark.parametrize("text", ["", " \t", "12 34", "\u4f60\u597d", "\x00", "\ud83d"])
def test_text_without_letters_is_refused(tmp_path: Path, text: str) -> None:
    model = load(save_speaking_model(tmp_path))
    with pytest.raises(InvalidInput, match=r"text: expected characters that the model speaks, got none"):
        items_of(model, text)


def test_long_sounds_are_refused_by_durations(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path))
    with pytest.raises(InvalidInput, match=r"text: expected speech of at most 60 seconds, got \d+; shorten"):
        speak(model, TEXTS[1] * 20, seed=1, speaking_rate=0.1)
    assert len(speak(model, TEXTS[1], seed=1)) > 0


def test_durations_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model = load(save_speaking_model(tmp_path, use_stochastic_duration_prediction=False))
    module: Any = model._model
    with torch.no_grad():
        module.duration_predictor.proj.bias.fill_(float("nan"))
    with pytest.raises(InvalidInput, match="text: expected speech of at most 60 seconds, got nan"):
        speak(model, TEXTS[1], seed=1)


def test_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="text: expected at most 600 characters, got 601"):
        items_of(load(save_speaking_model(tmp_path)), "a" * 601)


def test_uroman_model_reads_latin_letters_only(tmp_path: Path) -> None:
    model = load(change(save_speaking_model(tmp_path), "tokenizer_config.json", is_uroman=True))
    assert len(speak(model, TEXTS[1], seed=1)) > 0
    with pytest.raises(InvalidInput, match="text: expected Latin letters of ASCII, got others; romanize"):
        items_of(model, "\u043f\u0440\u0438\u0432\u0435\u0442")


def test_tokenizer_that_needs_espeak_is_refused(tmp_path: Path) -> None:
    change(save_speaking_model(tmp_path), "tokenizer_config.json", phonemize=True)
    with pytest.raises(InvalidModel, match="phonemize: expected false, got true"):
        load_torch_model(tmp_path)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(InvalidModel, match=f'dtype: expected "f32" for text-to-audio, got "{dtype}"'):
        load_torch_model(save_speaking_model(tmp_path), dtype=dtype)


def change(folder: Path, name: str, **values: Any) -> Path:
    """Write values into a JSON file of a folder; return the folder."""
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def test_folder_as_of_mms_is_served(tmp_path: Path) -> None:
    """Its weights have the older names of weight norms, and a letter is the padding token."""
    save_speaking_model(tmp_path)
    letters = ["k", "'", *"zyuxwvtsrqponmljihgfedcba", " ", "-", "<unk>"]
    (tmp_path / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    VitsTokenizer(str(tmp_path / "vocab.json"), pad_token="k", phonemize=False).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    with safe_open(file, "pt") as given:
        weights = {name: given.get_tensor(name) for name in given.keys()}  # noqa: SIM118 - no mapping
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    for ours, older in names.items():
        weights = {name.replace(ours, older): value for name, value in weights.items()}
    assert any(name.endswith("weight_g") for name in weights)
    save_file(weights, file, {"format": "pt"})
    model = load(tmp_path)
    text = "Kim likes the lake, look!"
    np.testing.assert_allclose(speak(model, text, seed=2), theirs(tmp_path, text, 2), rtol=0, atol=1e-5)
