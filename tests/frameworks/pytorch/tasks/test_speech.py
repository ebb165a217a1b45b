"""Speech to text by CTC models, against transformers' own pipeline: alone, in batches, and in windows."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.media.audio import decode_audio
from frameworks.pytorch.tasks.model import TaskModel
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.tasks.test_task_models import run_together
from tests.support.models.tasks.inputs import sounds, wav
from tests.support.models.tasks.speech import save_speech_model

TASK = "automatic-speech-recognition"
WAVES = ("data2vec-audio", "hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer", "wavlm")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"return_timestamps": "word"},
    {"return_timestamps": "char"},
    {"return_timestamps": "word", "chunk_length_s": 1.0},
    {"return_timestamps": "char", "chunk_length_s": 1.0, "stride_length_s": 0.25},
]


@pytest.mark.filterwarnings("ignore:Support for mismatched")  # WavLM in torch
@pytest.mark.parametrize("model_type", WAVES)
def test_speech_of_family_equals_pipeline(model_type: str, tmp_path: Path) -> None:
    model = load_torch_model(save_speech_model(tmp_path, model_type))
    assert isinstance(model, TaskModel)
    assert model.spec.task == TASK
    model.warm_up()
    assert model.pipeline is not None
    reference: Any = transformers.pipeline(TASK, model=str(tmp_path), device="cpu")
    files = [wav(wave) for wave in sounds() + sounds()[::-1]]
    files.append(wav([each for wave in sounds() for each in wave]))
    texts = set()
    for options in OPTIONS:
        prepared = [model.pipeline.prepare({"audio": file}, options) for file in files]
        for file, outputs in zip(files, run_together(model, prepared), strict=True):
            ours = model.pipeline.finish(outputs, options)
            theirs = reference(decode_audio(file, 16_000, "audio"), **options)
            assert ours == json.loads(json.dumps(theirs))
            texts.add(ours["text"])
    assert len(texts) > 3, "the model reads all sounds alike"


def test_long_sound_without_windows_is_refused(tmp_path: Path) -> None:
    model = load_torch_model(save_speech_model(tmp_path, "wav2vec2"))
    assert isinstance(model, TaskModel)
    assert model.pipeline is not None
    long = wav([0.0] * 16_000 * 61)
    with pytest.raises(InvalidInput, match=r"chunk_length_s: expected windows"):
        model.pipeline.prepare({"audio": long}, {})
    with pytest.raises(InvalidInput, match=r"stride_length_s: expected at most"):
        model.pipeline.prepare({"audio": long}, {"chunk_length_s": 30.0, "stride_length_s": 14.9})
    assert len(model.pipeline.prepare({"audio": long}, {"chunk_length_s": 30.0})) == 3


def test_model_with_language_model_is_refused(tmp_path: Path) -> None:
    file = save_speech_model(tmp_path, "wav2vec2") / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"processor_class": "Wav2Vec2ProcessorWithLM"}))
    with pytest.raises(InvalidModel, match="Wav2Vec2ProcessorWithLM"):
        load_torch_model(tmp_path)


def test_duration_of_sound_is_returned(tmp_path: Path) -> None:
    model = load_torch_model(save_speech_model(tmp_path, "wav2vec2"))
    assert isinstance(model, TaskModel)
    model.warm_up()
    assert model.pipeline is not None
    waves = [*sounds(), *sounds()]
    options = {"return_duration": True, "chunk_length_s": 1.0, "return_timestamps": "word"}
    prepared = [model.pipeline.prepare({"audio": wav(wave)}, options) for wave in waves]
    plain = {name: value for name, value in options.items() if name != "return_duration"}
    for wave, outputs in zip(waves, run_together(model, prepared), strict=True):
        found = model.pipeline.finish(outputs, options)
        assert found.pop("duration") == len(wave) / 16_000
        items = model.pipeline.prepare({"audio": wav(wave)}, plain)
        assert found == model.pipeline.finish(run_together(model, [items])[0], plain)


@pytest.mark.parametrize("model_type", ["sew", "wav2vec2"])
def test_sound_without_a_frame_is_refused(tmp_path: Path, model_type: str) -> None:
    model = load_torch_model(save_speech_model(tmp_path, model_type))
    assert isinstance(model, TaskModel)
    assert model.pipeline is not None
    # The kernels of the model together cover 258 samples.
    for options, samples in (({}, 257), ({"chunk_length_s": 1.0, "stride_length_s": 0.0}, 16_008)):
        with pytest.raises(InvalidInput, match=r"audio: expected a sound and a last window with samples"):
            model.pipeline.prepare({"audio": wav([0.0] * samples)}, options)
    [item] = model.pipeline.prepare({"audio": wav([0.0] * 258)}, {})
    assert run_together(model, [[item]])
