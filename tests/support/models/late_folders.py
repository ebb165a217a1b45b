"""Tiny folders of late interaction, as PyLate and Stanford's ColBERT save them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.models.text_files import change_json, write_json
from tests.support.models.torch_folders import HIDDEN_SIZE, rewrite_weights, save_embedder

VECTOR_SIZE = 16
QUERY_LENGTH = 12


def save_pylate(folder: Path, **settings: Any) -> Path:
    """An encoder with a Dense module. `settings`: of config_sentence_transformers.json."""
    save_embedder(folder, pooler=False)
    _add_special_tokens(folder, "[Q] ", "[D] ")
    stated = {
        "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": QUERY_LENGTH,
        "document_length": 20, "do_query_expansion": True, "attend_to_expansion_tokens": False,
        "skiplist_words": [".", ","], "similarity_fn_name": "MaxSim",
    }  # fmt: skip
    write_json(folder / "config_sentence_transformers.json", stated | settings)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 30, "do_lower_case": False})
    kinds = (("sentence_transformers.models.Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense"))
    modules = [{"idx": i, "name": str(i), "type": kind, "path": path} for i, (kind, path) in enumerate(kinds)]
    write_json(folder / "modules.json", modules)
    sizes = {"in_features": HIDDEN_SIZE, "out_features": VECTOR_SIZE, "bias": False}
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(folder / "1_Dense" / "config.json", sizes | activation)
    save_file({"linear.weight": _projection()}, folder / "1_Dense" / "model.safetensors")
    return folder


def save_stanford(folder: Path, **settings: Any) -> Path:
    """An HF_ColBERT with its projection among its weights. `settings`: of artifact.metadata."""
    save_embedder(folder, pooler=False)
    _add_special_tokens(folder, "[unused0]", "[unused1]")
    rewrite_weights(folder, linear__weight=_projection())
    change_json(folder / "config.json", architectures=["HF_ColBERT"])
    stated = {
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": QUERY_LENGTH, "doc_maxlen": 20,
        "mask_punctuation": True, "attend_to_mask_tokens": False,
    }  # fmt: skip
    write_json(folder / "artifact.metadata", stated | settings)
    return folder


def _projection() -> torch.Tensor:
    torch.manual_seed(17)
    return torch.randn(VECTOR_SIZE, HIDDEN_SIZE)


def _add_special_tokens(folder: Path, *tokens: str) -> None:
    """Add tokens in the place of letters that few texts have, so that the embedding table is large enough."""
    import json

    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    for letter, token in zip(("##x", "##q"), tokens, strict=True):
        vocabulary[token] = vocabulary.pop(letter)
        content["added_tokens"].append(
            {
                "id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
        )  # fmt: skip
    file.write_text(json.dumps(content))
