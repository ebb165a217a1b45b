"""Logits of decoders with a classification head equal those of transformers and sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from frameworks.text.pooling import scores
from frameworks.types import TEXT_OUTPUT, Array
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.models.decoder_folders import RANKING_TEMPLATE, save_decoder_classifier
from tests.support.models.text_files import TEXTS, change_json

RAGGED = [*TEXTS, "the engine of steam runs on the turntable , " * 4]
TOLERANCE = 1e-5


def reference(folder: Path, texts: list[str]) -> Array:
    """Return the logits of transformers in one batch, which is padded on the left."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), local_files_only=True).eval()
    with torch.inference_mode():
        logits: Array = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    return logits


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_logits_equal_transformers(made_once: FolderMaker, model_type: str) -> None:
    """The padding token is the end token of every text, so transformers reads the token before it."""
    folder = made_once(save_decoder_classifier, model_type=model_type)
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    assert model.spec.task == "classify"
    together = rows_of(model, RAGGED)
    assert together.shape == (len(RAGGED), 3)
    np.testing.assert_allclose(together, reference(folder, RAGGED), rtol=0, atol=TOLERANCE)
    alone = np.concatenate([rows_of(model, [text]) for text in RAGGED])
    np.testing.assert_allclose(alone, together, rtol=0, atol=TOLERANCE)
    assert np.ptp(together, axis=0).max() > 0.1


@pytest.mark.parametrize("pad_token_id", [None, pytest.param(-1, marks=pytest.mark.extended)])
def test_model_without_padding_token_runs_texts_alone(copied: FolderMaker, pad_token_id: int | None) -> None:
    """transformers refuses such a batch, or reads padding: each text is compared with a batch of its own."""
    folder = copied(save_decoder_classifier, pad_token_id=None)
    if pad_token_id is not None:
        change_json(folder / "config.json", pad_token_id=pad_token_id)
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    expected = np.concatenate([reference(folder, [text]) for text in RAGGED])
    np.testing.assert_allclose(rows_of(model, RAGGED), expected, rtol=0, atol=TOLERANCE)


def test_padding_token_is_that_of_family(copied: FolderMaker) -> None:
    """Gemma's is 0, also where config.json names none."""
    folder = copied(save_decoder_classifier, model_type="gemma", pad_token_id=0)
    change_json(folder / "config.json", pad_token_id=None)
    change_json(folder / "tokenizer_config.json", pad_token="<unk>")
    model = load_torch(folder, dtype="f32")
    np.testing.assert_allclose(rows_of(model, RAGGED), reference(folder, RAGGED), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("is_templated", [False, True])
def test_scores_of_pairs_equal_cross_encoder(copied: FolderMaker, is_templated: bool) -> None:
    """Of pairs that are tokenized as two texts, and of pairs in a chat template."""
    from sentence_transformers import CrossEncoder

    folder = copied(save_decoder_classifier, labels=("relevant",))
    if is_templated:
        (folder / "chat_template.jinja").write_text(RANKING_TEMPLATE, encoding="utf-8")
    model = load_torch(folder, dtype="f32")
    assert model.spec.text is not None
    assert (model.spec.text.labels, model.spec.text.multi_label) == (("relevant",), True)
    pairs = [("the engine", text) for text in RAGGED]
    assert model.tokenizer is not None
    logits = model.infer(model.tokenizer.tokenize_pairs(pairs, truncate=True))[TEXT_OUTPUT]
    assert isinstance(logits, np.ndarray)
    cross_encoder: Any = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    expected = cross_encoder.predict(pairs, show_progress_bar=False)
    np.testing.assert_allclose(scores(logits, multi_label=True)[:, 0], expected, rtol=0, atol=TOLERANCE)
    assert np.ptp(expected) > 0.01
