"""Test cross-encoders on pairs of texts, in PyTorch and ONNX Runtime, against transformers."""

import asyncio
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from frameworks.runtime import BatchModel
from frameworks.scheduling.merging.rows import merge
from frameworks.types import TEXT_OUTPUT, Array, TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import answered_through_a_dispatcher, load_onnx, load_torch, rows_of
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.text_files import TEXTS, change_json, write_json, write_tokenizer
from tests.support.models.torch_folders import FAMILIES, MAX_TOKENS, Family, rewrite_weights, save_classifier, style_of

QUERY = "the engine of steam"
LONG = "the cat sat on the turntable . " * 20
PAIRS = [(QUERY, text) for text in (*TEXTS, LONG)] + [("", ""), (LONG, "steam"), (LONG, LONG)]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TYPED: tuple[Family, ...] = ("bert",)
"""Families whose models distinguish the texts of a pair by token types."""


@pytest.fixture
def cross_encoder(copied: FolderMaker) -> Callable[..., Path]:
    """Return a folder with a classifier of one label, with the tokenizer of a cross-encoder."""

    def make(family: Family = "bert") -> Path:
        folder = copied(save_classifier, family=family, labels=("relevant",))
        write_tokenizer(folder, style_of(family), token_types=family in TYPED)
        return folder

    return make


def logits_of(model: BatchModel, pairs: list[tuple[str, str]], *, with_types: bool = True) -> Array:
    assert model.tokenizer is not None
    batch = model.tokenizer.tokenize_pairs(pairs, truncate=True)
    rows = model.infer(batch if with_types else TokenBatch(batch.token_ids))[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return rows


def transformers_of(folder: Path, pairs: list[tuple[str, str]]) -> Array:
    """Return the logits of transformers' tokenizer and model, in one batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), local_files_only=True).eval()
    tokens = tokenizer(pairs, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.inference_mode():
        logits: Array = model(**tokens).logits.numpy()
    return logits


def export(folder: Path, into: Path) -> Path:
    """Export the classifier of a folder as a graph with free dimensions, and copy its text files."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), local_files_only=True).eval()
    ones = torch.ones(2, 7, dtype=torch.long)
    into.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Logits(model),
            (ones, ones, ones),
            str(into / "model.onnx"),
            dynamo=False,
            input_names=list(INPUTS),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in INPUTS} | {"logits": {0: "batch"}},
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (into / name).write_bytes((folder / name).read_bytes())
    return into


class _Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(INPUTS, inputs, strict=True))).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_pytorch_logits_match_transformers(cross_encoder: Callable[..., Path], family: Family) -> None:
    folder = cross_encoder(family)
    model = load_torch(folder, dtype="f32")
    rows = logits_of(model, PAIRS)
    assert rows.shape == (len(PAIRS), 1)
    np.testing.assert_allclose(rows, transformers_of(folder, PAIRS), rtol=0, atol=1e-5)
    if family in TYPED:
        assert np.abs(rows - logits_of(model, PAIRS, with_types=False)).max() > 1e-2, "token types change nothing"


@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(each, marks=pytest.mark.extended) for each in FAMILIES[1:])]
)
def test_left_cut_logits_match_transformers(cross_encoder: Callable[..., Path], family: Family) -> None:
    folder = cross_encoder(family)
    right = logits_of(load_torch(folder, dtype="f32"), PAIRS)
    change_json(folder / "tokenizer_config.json", truncation_side="left")
    rows = logits_of(load_torch(folder, dtype="f32"), PAIRS)
    np.testing.assert_allclose(rows, transformers_of(folder, PAIRS), rtol=0, atol=1e-5)
    assert np.abs(rows - right).max() > 1e-3, "no pair was cut"


def test_onnx_logits_match_transformers(cross_encoder: Callable[..., Path], tmp_path: Path) -> None:
    folder = cross_encoder()
    model = load_onnx(export(folder, tmp_path / "graph"))
    assert (model.spec.task, model.spec.text and model.spec.text.max_tokens) == ("classify", MAX_TOKENS)
    reference = transformers_of(folder, PAIRS)
    np.testing.assert_allclose(logits_of(model, PAIRS), reference, rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits_of(model, PAIRS[:1]), reference[:1], rtol=0, atol=1e-5)


def test_model_with_one_token_type_gets_none(cross_encoder: Callable[..., Path]) -> None:
    """RoBERTa's table of token types has one row, also for the second text of a pair."""
    folder = cross_encoder("roberta")
    table = "roberta__embeddings__token_type_embeddings__weight"
    rewrite_weights(folder, **{table: load_file(folder / "model.safetensors")[table.replace("__", ".")][:1].clone()})
    change_json(folder / "config.json", type_vocab_size=1)
    reference = transformers_of(folder, PAIRS)
    write_tokenizer(folder, "roberta", token_types=True)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    [second] = [part for part in content["post_processor"]["pair"] if part.get("Sequence", {}).get("id") == "B"]
    second["Sequence"]["type_id"] = 1
    write_json(folder / "tokenizer.json", content)
    np.testing.assert_allclose(logits_of(load_torch(folder, dtype="f32"), PAIRS), reference, rtol=0, atol=1e-5)


def test_model_without_token_type_input_gets_none(cross_encoder: Callable[..., Path]) -> None:
    folder = cross_encoder("distilbert")
    reference = transformers_of(folder, PAIRS)
    change_json(folder / "tokenizer_config.json", model_input_names=[*INPUTS])
    model = load_torch(folder, dtype="f32")
    assert model.tokenizer is not None
    assert model.tokenizer.tokenize_pairs(PAIRS, truncate=True).token_type_ids is not None
    given: set[str] = set()
    assert model._model is not None
    model._model.register_forward_pre_hook(lambda _, args, named: given.update(named), with_kwargs=True)
    np.testing.assert_allclose(logits_of(model, PAIRS), reference, rtol=0, atol=1e-5)
    assert given == {"input_ids", "attention_mask"}


def test_token_types_follow_model_input_names(cross_encoder: Callable[..., Path]) -> None:
    """As in transformers, model_input_names without token_type_ids disables them."""
    folder = cross_encoder()
    with_types = logits_of(load_torch(folder, dtype="f32"), PAIRS)
    write_tokenizer(folder, token_types=False)
    rows = logits_of(load_torch(folder, dtype="f32"), PAIRS)
    np.testing.assert_allclose(rows, transformers_of(folder, PAIRS), rtol=0, atol=1e-5)
    assert np.abs(rows - with_types).max() > 1e-2


@pytest.mark.parametrize(
    ("tokenizer_class", "types"),
    [("PreTrainedTokenizerFast", False), ("BertTokenizerFast", True), ("ElectraTokenizer", True), (None, True)],
)
def test_token_types_follow_tokenizer_class(
    cross_encoder: Callable[..., Path], tokenizer_class: str | None, types: bool
) -> None:
    """Without model_input_names, as in transformers 5."""
    folder = cross_encoder()
    change_json(folder / "tokenizer_config.json", model_input_names=None, tokenizer_class=tokenizer_class)
    model = load_torch(folder, dtype="f32")
    assert model.tokenizer is not None
    assert (model.tokenizer.tokenize_pairs(PAIRS, truncate=True).token_type_ids is not None) is types
    np.testing.assert_allclose(logits_of(model, PAIRS), transformers_of(folder, PAIRS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [("batch", "sequence"), (3, 16)])
def test_graph_logits_match_onnxruntime(tmp_path: Path, shape: tuple[Any, Any]) -> None:
    graph = onnx_encoders.encoder(("logits",), INPUTS, shape=shape)
    onnx_graphs.save(graph, tmp_path)
    write_tokenizer(tmp_path, token_types=True)
    model = load_onnx(tmp_path)
    pairs = [(QUERY, "the cat"), ("steam", ""), ("", "runs on"), ("the", "mat . ."), ("on", "of")]
    assert model.tokenizer is not None
    batch = model.tokenizer.tokenize_pairs(pairs, truncate=True)
    assert batch.token_type_ids is not None
    raw = onnx_graphs.session(graph)
    longest = 16 if shape[1] == 16 else 0
    alone = []
    for ids, types in zip(batch.token_ids, batch.token_type_ids, strict=True):
        padding = [0] * (longest - len(ids))
        feeds = {
            "input_ids": ids + padding,
            "attention_mask": [1] * len(ids) + padding,
            "token_type_ids": types + padding,
        }
        rows = 3 if longest else 1
        alone.append(raw.run(["logits"], {name: np.array([value] * rows) for name, value in feeds.items()})[0][0])
    np.testing.assert_allclose(logits_of(model, pairs), np.stack(alone), rtol=0, atol=1e-6)


@pytest.mark.parametrize("framework", ["pytorch", "onnx"])
def test_pairs_and_single_texts_share_batches(
    cross_encoder: Callable[..., Path], tmp_path: Path, framework: str
) -> None:
    folder = cross_encoder()
    torch_model, onnx_model = load_torch(folder, dtype="f32"), load_onnx(export(folder, tmp_path / "graph"))
    model: BatchModel = torch_model if framework == "pytorch" else onnx_model
    model.warm_up()
    assert model.tokenizer is not None
    pairs, single = (
        model.tokenizer.tokenize_pairs(PAIRS, truncate=True),
        model.tokenizer.tokenize(list(TEXTS), truncate=True),
    )
    reference = transformers_of(folder, PAIRS)
    together = merge([TokenBatch(single), pairs])
    rows = model.infer(together)[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    np.testing.assert_allclose(rows[: len(single)], rows_of(model, list(TEXTS)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(rows[len(single) :], reference, rtol=0, atol=1e-5)
    in_parts, _ = asyncio.run(answered_through_a_dispatcher(model, pairs))
    np.testing.assert_allclose(in_parts, reference, rtol=0, atol=1e-5)
