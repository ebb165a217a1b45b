"""Tiny Hugging Face folders of the BERT family, random weights from a fixed seed, saved by transformers itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.models.text_files import VOCABULARY_SIZE, Style, change_json, write_tokenizer

Family = Literal["bert", "roberta", "distilbert", "mpnet", "modernbert"]
FAMILIES: tuple[Family, ...] = ("bert", "roberta", "distilbert", "mpnet", "modernbert")

HIDDEN_SIZE = 32
MAX_TOKENS = 40
"""Maximum tokens of each family, by its config.json."""

_PREFIXES: dict[Family, str] = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "mpnet": "MPNet", "modernbert": "ModernBert",
}  # fmt: skip
_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def save_embedder(
    folder: Path,
    family: Family = "bert",
    *,
    pooler: bool = True,
    dtype: str = "f32",
    max_shard_size: str = "1GB",
    **sizes: Any,
) -> Path:
    """An encoder without a head. `pooler` False: its weights have no pooler. `max_shard_size` "20KB" makes shards.
    `sizes`: further keys of its config.
    """
    torch.manual_seed(11)
    # DistilBERT and ModernBERT have no pooler at all.
    options = {"add_pooling_layer": pooler} if family in ("bert", "roberta", "mpnet") else {}
    model = getattr(transformers, f"{_PREFIXES[family]}Model")(_config(family, **sizes), **options)
    return _save(model, folder, family, dtype, max_shard_size)


def save_masked_model(folder: Path, family: Family = "bert") -> Path:
    """A ForMaskedLM model."""
    torch.manual_seed(21)
    return _save(
        getattr(transformers, f"{_PREFIXES[family]}ForMaskedLM")(_config(family)), folder, family, "f32", "1GB"
    )


def save_classifier(
    folder: Path,
    family: Family = "bert",
    labels: Sequence[str] = ("fast", "slow", "late"),
    *,
    problem_type: str | None = None,
    dtype: str = "f32",
) -> Path:
    """A ForSequenceClassification model with these labels. `problem_type` as transformers names them."""
    torch.manual_seed(12)
    config = _config(
        family,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        problem_type=problem_type,
    )
    model = getattr(transformers, f"{_PREFIXES[family]}ForSequenceClassification")(config)
    return _save(model, folder, family, dtype, "1GB")


def rewrite_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Puts tensors into model.safetensors, or takes them out (None). A "__" in a name stands for a dot."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, file, metadata={"format": "pt"})


def style_of(family: Family) -> Style:
    """Whose special tokens the family's tokenizer has."""
    return "roberta" if family == "roberta" else "mpnet" if family == "mpnet" else "bert"


def _config(family: Family, **more: Any) -> Any:
    pad_token_id = 0 if style_of(family) == "bert" else 1
    # Positions of RoBERTa and MPNet begin after the padding's.
    positions = MAX_TOKENS + (2 if style_of(family) != "bert" else 0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": positions,
        "pad_token_id": pad_token_id,
        "initializer_range": 0.3,  # large enough that texts differ
    }
    if family == "distilbert":
        sizes |= {"dim": HIDDEN_SIZE, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    else:
        sizes |= {
            "hidden_size": HIDDEN_SIZE, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        }  # fmt: skip
    if family == "modernbert":
        sizes |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return getattr(transformers, f"{_PREFIXES[family]}Config")(**(sizes | more))


def _save(model: Any, folder: Path, family: Family, dtype: str, max_shard_size: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().to(_TORCH_DTYPES[dtype]).save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder, style_of(family))
    change_json(folder / "config.json", transformers_version=None)
    return folder
