"""Embeddings of decoders equal those of sentence-transformers on the same folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.pooling import normalize_rows
from frameworks.types import TEXT_OUTPUT, Array, TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.models.decoder_folders import HIDDEN_SIZE, PROMPTS, save_decoder_embedder
from tests.support.models.generation_tokenizers import make_tokenizer
from tests.support.models.text_files import TEXTS, change_json

RAGGED = [*TEXTS, "the engine of steam runs on the turntable , " * 8]
TOLERANCE = 1e-5


def reference(folder: Path, texts: list[str] = RAGGED, **options: Any) -> Array:
    """Return the embeddings of sentence-transformers in one batch, which is padded on the left."""
    from sentence_transformers import SentenceTransformer

    # Gemma 2 has a soft cap, which torch's attention has not.
    attention = {"attn_implementation": "eager"}
    model: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=attention)
    rows: Array = model.encode(texts, batch_size=len(texts), show_progress_bar=False, **options)
    return rows


def embedded(model: EncoderModel, texts: list[str], prompt: str | None = None) -> Array:
    """Return the embeddings of a caller."""
    assert model.tokenizer is not None
    rows = model.infer(TokenBatch(model.tokenizer.tokenize(texts, truncate=True, prompt=prompt)))[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return normalize_rows(rows)


@pytest.mark.parametrize(("model_type", "has_head"), [("qwen3", True), ("mistral", False), ("gemma2", False)])
def test_embeddings_equal_sentence_transformers(made_once: FolderMaker, model_type: str, has_head: bool) -> None:
    """Of texts shorter and longer than Mistral's sliding window, together and alone."""
    folder = made_once(save_decoder_embedder, model_type=model_type, has_head=has_head)
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    together = embedded(model, RAGGED)
    assert together.shape == (len(RAGGED), HIDDEN_SIZE)
    np.testing.assert_allclose(together, reference(folder), rtol=0, atol=TOLERANCE)
    alone = np.concatenate([embedded(model, [text]) for text in RAGGED])
    np.testing.assert_allclose(alone, together, rtol=0, atol=TOLERANCE)
    assert np.ptp(together, axis=0).max() > 0.1, "texts that all give one vector would prove nothing"


def test_prompts_equal_sentence_transformers(made_once: FolderMaker) -> None:
    folder = made_once(save_decoder_embedder)
    model = load_torch(folder)
    assert model.spec.text is not None
    assert model.spec.text.prompts == PROMPTS
    texts = list(TEXTS[:3])
    queries = embedded(model, texts, PROMPTS["query"])
    np.testing.assert_allclose(queries, reference(folder, texts, prompt_name="query"), rtol=0, atol=TOLERANCE)
    assert np.abs(queries - embedded(model, texts)).max() > 0.1


def test_truncated_text_keeps_end_token(made_once: FolderMaker) -> None:
    folder = made_once(save_decoder_embedder, max_seq_length=12)
    model = load_torch(folder)
    assert model.tokenizer is not None
    tokenized = model.tokenizer.tokenize(RAGGED, truncate=True)
    assert max(map(len, tokenized)) == 12
    assert {ids[-1] for ids in tokenized} == {2}
    np.testing.assert_allclose(embedded(model, RAGGED), reference(folder), rtol=0, atol=TOLERANCE)


def test_shorter_embeddings_equal_sentence_transformers(copied: FolderMaker) -> None:
    folder = copied(save_decoder_embedder)
    change_json(folder / "config.json", is_matryoshka=True)
    model = load_torch(folder)
    assert model.spec.text is not None
    assert 16 in model.spec.text.shorter_sizes
    cut = normalize_rows(rows_of(model, RAGGED)[:, :16])
    expected = reference(folder, truncate_dim=16, normalize_embeddings=True)
    np.testing.assert_allclose(cut, expected, rtol=0, atol=TOLERANCE)


def test_text_without_tokens_is_zeros(copied: FolderMaker) -> None:
    folder = copied(save_decoder_embedder)
    make_tokenizer("gpt2").save(str(folder / "tokenizer.json"))
    for dtype in ("f32", "bf16"):
        model = load_torch(folder, dtype=dtype)
        rows = rows_of(model, ["", "the cat"])
        assert not rows[0].any()
        np.testing.assert_allclose(rows[1:], rows_of(model, ["the cat"]), rtol=0, atol=0.1 if dtype == "bf16" else 1e-5)
        assert not rows_of(model, [""]).any()


def test_spec_describes_embedding_decoder(made_once: FolderMaker) -> None:
    spec = load_torch(made_once(save_decoder_embedder), model_type="llama").spec
    assert (spec.framework, spec.task) == ("pytorch", "embed")
    assert spec.text is not None
    assert (spec.text.pooling, spec.text.normalize, spec.text.embedding_size) == ("lasttoken", True, HIDDEN_SIZE)


def test_runs_keep_no_keys_and_values(made_once: FolderMaker) -> None:
    model: Any = load_torch(made_once(save_decoder_embedder))
    assert not model._model.config.use_cache


def test_generation_keys_are_refused(made_once: FolderMaker) -> None:
    with pytest.raises(InvalidModel, match="kv_cache_bytes: expected only for models that generate text; remove it"):
        load_torch(made_once(save_decoder_embedder), kv_cache_bytes=4096)


@pytest.mark.extended
def test_int8_decoder_is_near_original(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = made_once(save_decoder_embedder)
    quantized = load_torch(folder, dtype="int8", cache_dir=tmp_path, min_cosine=0.9)
    ours, original = embedded(quantized, RAGGED), embedded(load_torch(folder), RAGGED)
    assert (ours * original).sum(axis=1).min() > 0.9
