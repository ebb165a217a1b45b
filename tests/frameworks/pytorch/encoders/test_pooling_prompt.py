"""Poolings that leave out the tokens of the prompt (INSTRUCTOR), against SentenceTransformer.encode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.scheduling.merging.rows import merge
from frameworks.types import TokenBatch
from tests.frameworks.models.loading import load_onnx, load_torch, rows_of
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.exported import export_states
from tests.support.models.text_files import TEXTS, change_json, write_sentence_transformers, write_tokenizer
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, save_embedder

RAGGED = ["", *TEXTS, "the engine of steam runs on . " * 20]
PROMPTS = {"query": "query : the cat ", "joined": "on the ma", "long": "steam runs on the mat . " * 30, "empty": ""}
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def save(folder: Path, modes: Any, special_tokens: bool = True) -> Any:
    """Save an encoder whose default prompt is `query`; return its SentenceTransformer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    encoder = save_embedder(folder / "encoder")
    write_tokenizer(encoder, special_tokens=special_tokens)
    modules = [Transformer(str(encoder), max_seq_length=MAX_TOKENS), Pooling(HIDDEN_SIZE, modes, include_prompt=False)]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS, default_prompt_name="query").eval()
    model.save(str(folder / "saved"), create_model_card=False)
    return model


def check(model: Any, reference: Any, texts: list[str]) -> None:
    model.warm_up()
    assert model.spec.text.unpadded_because is None
    for prompt in (None, *PROMPTS.values()):
        wanted = reference.encode(texts, prompt=prompt, batch_size=len(texts), show_progress_bar=False)
        np.testing.assert_allclose(rows_of(model, texts, prompt), wanted, rtol=0, atol=1e-5)
        alone = np.concatenate([rows_of(model, [each], prompt) for each in texts])
        np.testing.assert_allclose(alone, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_torch_vectors_equal_sentence_transformers(tmp_path: Path, special_tokens: bool) -> None:
    # Without special tokens nothing remains of a text behind a long prompt: the maximum of nothing is infinite.
    modes = MODES if special_tokens else [mode for mode in MODES if mode != "max"]
    reference = save(tmp_path, modes, special_tokens)
    texts = RAGGED if special_tokens else [text for text in RAGGED if text]
    check(load_torch(tmp_path / "saved", dtype="f32"), reference, texts)


def test_graph_vectors_equal_sentence_transformers(tmp_path: Path) -> None:
    reference = save(tmp_path, MODES)
    check(load_onnx(export_states(tmp_path / "saved", tmp_path / "graph")), reference, RAGGED)


def test_prompt_changes_only_states(tmp_path: Path) -> None:
    """Other tokens attend to those of the prompt, which are not pooled themselves."""
    save(tmp_path, "mean")
    model = load_torch(tmp_path / "saved", dtype="f32")
    without, left_out = rows_of(model, [*TEXTS], ""), rows_of(model, [*TEXTS])
    change_json(tmp_path / "saved" / "1_Pooling" / "config.json", include_prompt=True)
    pooled = rows_of(load_torch(tmp_path / "saved", dtype="f32"), [*TEXTS])
    assert min(np.abs(without - left_out).max(), np.abs(pooled - left_out).max()) > 1e-2


def test_merged_batches_keep_their_prompts() -> None:
    with_prompt, without = TokenBatch([[5, 6], [7]], unpooled=[1, 1]), TokenBatch([[8, 9]])
    merged = merge([with_prompt, without])
    assert isinstance(merged, TokenBatch)
    assert merged.unpooled == [1, 1, 0]
    assert merged.part(1, 2).unpooled == [1, 0]


def test_graph_with_own_pooling_is_refused(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_encoders.encoder(("sentence_embedding",)), tmp_path)
    write_tokenizer(tmp_path)
    write_sentence_transformers(tmp_path, prompt="query : ")
    change_json(tmp_path / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(InvalidModel, match=r"model\.onnx: include_prompt: expected true"):
        load_onnx(tmp_path)
