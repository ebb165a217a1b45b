"""Folders that SentenceTransformer.save writes, with each module after the encoder, against its `encode`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from frameworks.core.errors import InvalidModel
from frameworks.text.pooling import normalize_rows
from frameworks.types import Array
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.models.text_files import TEXTS, change_json
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, save_embedder

RAGGED = ["", *TEXTS, "the engine of steam runs on . " * 20]
POOLINGS: tuple[Any, ...] = (
    "mean_sqrt_len_tokens",
    "weightedmean",
    ("mean", "max"),
    ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
    ("weightedmean", "cls"),
)
RARE_ACTIVATIONS = ("SiLU", "ELU", "Softplus", "LogSigmoid", "LeakyReLU")
Saved = Callable[..., tuple[Path, Array]]


def _extended(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.extended)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Save an encoder and modules; return the folder, and the vectors of RAGGED by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    def save(*modules: torch.nn.Module, safe: bool = True) -> tuple[Path, Array]:
        torch.manual_seed(3)
        for parameter in (each for module in modules for each in module.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)
        encoder = Transformer(str(save_embedder(tmp_path / "encoder")), max_seq_length=MAX_TOKENS)
        model = SentenceTransformer(modules=[encoder, *modules], device="cpu").eval()
        model.save(str(tmp_path / "saved"), create_model_card=False, safe_serialization=safe)
        return tmp_path / "saved", model.encode(RAGGED, batch_size=len(RAGGED), show_progress_bar=False)

    return save


def check(folder: Path, wanted: Array, **entry: Any) -> None:
    model = load_torch(folder, dtype="f32", **entry)
    model.warm_up()
    text = model.spec.text
    assert text is not None
    assert text.embedding_size == wanted.shape[1] == model.spec.outputs[0].shape[-1]  # type: ignore[index]
    finish = normalize_rows if text.normalize else np.asarray
    np.testing.assert_allclose(finish(rows_of(model, RAGGED)), wanted, rtol=0, atol=1e-5)
    alone = np.concatenate([rows_of(model, [each]) for each in RAGGED])
    np.testing.assert_allclose(finish(alone), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", POOLINGS, ids=str)
def test_pooling_equals_sentence_transformers(saved: Saved, mode: Any) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    check(*saved(Pooling(HIDDEN_SIZE, mode)))


def test_chain_of_modules_equals_sentence_transformers(saved: Saved) -> None:
    """A Normalize in the middle is a step; the one at the end is the default of requests."""
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

    first = Dense(2 * HIDDEN_SIZE, 48, bias=False, activation_function=torch.nn.Identity())
    last = Dense(48, 5, activation_function=torch.nn.GELU(), use_residual=True)
    norm = LayerNorm(48)
    check(*saved(Pooling(HIDDEN_SIZE, ("mean", "cls")), first, Dropout(0.1), Normalize(), norm, last, Normalize()))


@pytest.mark.parametrize("name", ["Tanh", "ReLU", "Sigmoid", *map(_extended, RARE_ACTIVATIONS)])
def test_activation_equals_sentence_transformers(saved: Saved, name: str) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    dense = Dense(HIDDEN_SIZE, HIDDEN_SIZE, activation_function=getattr(torch.nn, name)(), use_residual=name == "ReLU")
    check(*saved(Pooling(HIDDEN_SIZE), dense))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "custom.Swish"}, "activation_function: expected one of torch.nn's"),
        ({"in_features": 7}, "in_features: expected 32"),
        ({"out_features": 10**9}, "out_features: expected 1 to"),
        ({"out_features": 6}, r"linear.weight: expected a tensor \[6, 32\], got \[5, 32\]"),
        ({"module_input_name": "token_embeddings"}, "module_input_name: expected"),
    ],
)
def test_unserved_dense_is_refused(saved: Saved, changes: dict[str, object], message: str) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder, _ = saved(Pooling(HIDDEN_SIZE), Dense(HIDDEN_SIZE, 5))
    change_json(folder / "2_Dense" / "config.json", **changes)
    with pytest.raises(InvalidModel, match=message):
        load_torch(folder, dtype="f32")


def test_pickled_weights_are_read_where_allowed(saved: Saved) -> None:
    """Those of a module and of the encoder itself, as published models have them."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder, wanted = saved(Pooling(HIDDEN_SIZE), Dense(HIDDEN_SIZE, 5))
    for part in (folder / "2_Dense", folder):
        safe = part / "model.safetensors"
        torch.save(load_file(safe), part / "pytorch_model.bin")
        safe.unlink()
        with pytest.raises(InvalidModel, match=r"got a pickle.*allow_pickled_weights = true"):
            load_torch(folder, dtype="f32")
        check(folder, wanted, allow_pickled_weights=True)


@pytest.mark.parametrize("content", [[1, 2], {"linear.weight": 3}, {"linear.weight": Path("code")}, {}])
def test_pickle_of_other_objects_is_refused(saved: Saved, content: object) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder, _ = saved(Pooling(HIDDEN_SIZE), Dense(HIDDEN_SIZE, 5))
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save(content, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InvalidModel, match=r"pytorch_model\.bin: expected tensors"):
        load_torch(folder, dtype="f32", allow_pickled_weights=True)


def test_quantized_encoder_keeps_dense(saved: Saved, tmp_path: Path) -> None:
    """The report compares vectors behind the modules."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder, wanted = saved(Pooling(HIDDEN_SIZE), Dense(HIDDEN_SIZE, 5))
    model = load_torch(folder, dtype="int8", min_cosine=0.5, cache_dir=tmp_path / "copies")
    rows = rows_of(model, RAGGED)
    assert model.spec.text is not None
    assert (model.spec.text.embedding_size, model.spec.quantization is not None) == (5, True)
    assert (normalize_rows(rows) * normalize_rows(wanted)).sum(axis=1).min() > 0.9


@pytest.mark.parametrize("is_model2vec", [False, True])
def test_static_embedding_equals_sentence_transformers(tmp_path: Path, is_model2vec: bool) -> None:
    """model2vec's files have a row for several tokens, and a weight for each."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(save_embedder(tmp_path / "encoder") / "tokenizer.json"))
    torch.manual_seed(4)
    static, folder = StaticEmbedding(tokenizer, embedding_dim=12), tmp_path / "saved"
    SentenceTransformer(modules=[static, Dense(12, 7), Normalize()], device="cpu").save(str(folder))
    if is_model2vec:
        count = tokenizer.get_vocab_size()
        tensors = {"embeddings": torch.randn(9, 12), "mapping": torch.arange(count) % 9, "weights": torch.rand(count)}
        save_file(tensors, next(folder.glob("**/tokenizer.json")).parent / "model.safetensors")
    text = load_torch(folder, dtype="f32").spec.text
    assert text is not None
    assert not text.pads
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    check(folder, model.encode(RAGGED, batch_size=len(RAGGED), show_progress_bar=False))
