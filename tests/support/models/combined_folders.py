"""A tiny folder of bge-m3's form, and its vectors of three kinds by plain transformers."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.support.models.text_files import change_json, write_json
from tests.support.models.torch_folders import HIDDEN_SIZE, save_embedder

MULTI_SIZE = 12
MAX_LENGTH = 20


def save_combined(folder: Path, *, names: tuple[str, ...] = ("sparse_linear.pt", "colbert_linear.pt")) -> Path:
    """An XLM-RoBERTa-like encoder with Pooling by the first token, Normalize, and the files `names` of heads."""
    save_embedder(folder, "roberta", pooler=False)
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": False})
    pooling = {"word_embedding_dimension": HIDDEN_SIZE, "pooling_mode_cls_token": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    special: dict[str, object] = {
        "cls_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": {"content": "<unk>", "__type": "AddedToken"},
    }
    change_json(folder / "tokenizer_config.json", **special)
    torch.manual_seed(17)
    for name in names:
        layer = torch.nn.Linear(HIDDEN_SIZE, 1 if name == "sparse_linear.pt" else MULTI_SIZE)
        torch.save(layer.state_dict(), folder / name)
    return folder


class Combined(NamedTuple):
    """Vectors of a text: float32 [size], token id → weight, and float32 [tokens - 1, MULTI_SIZE]."""

    dense: Any
    sparse: dict[int, float]
    multi: Any


def combined_vectors(folder: Path, text: str) -> Combined:
    """Compute as `M3Embedder.encode_single_device` of FlagEmbedding, for one text."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    heads = {name: torch.load(folder / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert")}
    inputs = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state[0]
        weights = torch.relu(torch.nn.functional.linear(states, **heads["sparse"]))[:, 0].tolist()
        multi = torch.nn.functional.linear(states[1:], **heads["colbert"])
    named = tokenizer.special_tokens_map
    unused = {
        tokenizer.convert_tokens_to_ids(named[key])
        for key in ("cls_token", "eos_token", "pad_token", "unk_token")
        if key in named
    }
    sparse: dict[int, float] = {}
    for token_id, weight in zip(inputs["input_ids"][0].tolist(), weights, strict=True):
        if token_id not in unused and weight > sparse.get(token_id, 0.0):
            sparse[token_id] = weight
    normalize = torch.nn.functional.normalize
    return Combined(normalize(states[0], dim=0).numpy(), sparse, normalize(multi, dim=-1).numpy().astype(np.float32))
