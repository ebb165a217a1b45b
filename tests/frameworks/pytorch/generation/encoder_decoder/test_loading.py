"""Loads of models with an encoder and a decoder: dtypes, entries that do not fit, files without a value."""

from pathlib import Path
from typing import Any

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.generation.types import BeamSearch
from tests.frameworks.pytorch.generation.encoder_decoder.generating_texts import (
    generated,
    reference_of,
    sources,
    texts_of,
)
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.support.models.encoder_decoder_folders import save_encoder_decoder
from tests.support.models.text_files import change_json

BART = "BartForConditionalGeneration"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder_decoder(tmp_path_factory.mktemp("model") / "m", BART)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_narrow_weights_begin_texts_alike(dtype: str, folder: Path) -> None:
    """Random logits are close to each other, so texts differ after a while."""
    model = load_generating(folder, dtype=dtype, min_cosine=0.9)
    given = sources(16, seed=1)
    own, wanted = texts_of(model, given, 1), generated(reference_of(folder), given, 1)
    assert sum(one == other for one, other in zip(own, wanted, strict=True)) >= 12
    report = model.spec.quantization
    assert (report is None) == (dtype == "bf16")
    assert report is None or (report.cosine_min > 0.98 and report.bytes_after < report.bytes_before)


def test_files_choose_search_and_lengths(tmp_path: Path) -> None:
    settings = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": True, "max_length": 20, "min_length": 5}
    folder = save_encoder_decoder(tmp_path / "m", BART, generation=settings)
    spec = load_generating(folder).spec.generation
    assert spec.sampling.beams == BeamSearch(4, 0.5, True)
    assert (spec.source.max_new_tokens, spec.source.min_new_tokens) == (19, 4)
    assert spec.sampling.temperature == 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"num_speculative_tokens": 2}, "num_speculative_tokens: expected none for BartForConditionalGeneration"),
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"dtype": "int4"}, 'got "int4"'),
        ({"kv_cache_bytes": 1000}, "kv_cache_bytes: expected at least"),
        ({"task": "fill-mask"}, "task: expected a task of BartForConditionalGeneration"),
    ],
)
def test_entry_of_other_models_is_refused(entry: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(InvalidModel, match=message):
        load_generating(folder, **entry)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 17}, "num_beams: expected at most 16, got 17"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: expected an integer of at least 0"),
        ({"bad_words_ids": [5]}, "bad_words_ids: expected lists of token ids"),
        ({"decoder_start_token_id": 5000}, "decoder_start_token_id: expected a token id below 259"),
        ({"typical_p": 0.5}, "typical_p"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_encoder_decoder(tmp_path / "m", BART, generation=settings)
    with pytest.raises(InvalidModel, match=message):
        load_generating(folder)


def test_class_with_experts_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    other = save_encoder_decoder(tmp_path / "m", BART)
    change_json(other / "config.json", architectures=["SwitchTransformersForConditionalGeneration"])
    with pytest.raises(InvalidModel, match="got SwitchTransformersForConditionalGeneration"):
        load_generating(other)


def test_task_of_encoder_decoders_needs_an_encoder(tmp_path: Path) -> None:
    from tests.support.models.causal_folders import save_causal_model

    with pytest.raises(InvalidModel, match='expected a model with an encoder and a decoder for "translation"'):
        load_generating(save_causal_model(tmp_path / "m"), task="translation")
