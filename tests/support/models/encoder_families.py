"""Tiny folders of encoders beyond the BERT family: those that padding changes, and those with unusual positions."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models.text_files import VOCABULARY_SIZE, write_tokenizer

POSITIONS = 40
"""Rows of each table of positions."""

_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": POSITIONS, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
_ROBERTA = _BERT | {"pad_token_id": 1}
_GPT = {"vocab_size": VOCABULARY_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}

CHANGED_BY_PADDING: dict[str, dict[str, Any]] = {
    "FNetModel": _BERT,
    "ConvBertModel": _BERT | {"embedding_size": 32, "head_ratio": 2},
    "NystromformerModel": _BERT,
    "YosoModel": _BERT,
    "XLNetForSequenceClassification": {
        "vocab_size": VOCABULARY_SIZE, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "pad_token_id": 0,
        "initializer_range": 0.3,
    },
}  # fmt: skip
"""Architecture to the sizes of its config."""

USABLE_POSITIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "XmodModel": (POSITIONS - 2, _ROBERTA | {"languages": ["en_XX"], "default_language": "en_XX"}),
    "XLMRobertaXLModel": (POSITIONS - 2, _ROBERTA),
    "EsmModel": (POSITIONS - 2, _ROBERTA | {"position_embedding_type": "absolute", "mask_token_id": 4}),
    "IBertModel": (POSITIONS - 2, _ROBERTA),
    "LukeModel": (POSITIONS - 2, _ROBERTA | {"entity_vocab_size": 4}),
    "ElectraModel": (POSITIONS, _BERT | {"embedding_size": 32}),
    "GPT2ForSequenceClassification": (POSITIONS, _GPT | {"n_positions": POSITIONS}),
    "CTRLForSequenceClassification": (POSITIONS, _GPT | {"n_positions": POSITIONS, "dff": 48}),
}
"""Architecture to the longest text that it reads, and the sizes of its config."""


def save_family(folder: Path, architecture: str) -> Path:
    """Save a model of one of the tables with random weights, and a tokenizer."""
    sizes = CHANGED_BY_PADDING.get(architecture) or USABLE_POSITIONS[architecture][1]
    torch.manual_seed(5)
    model_class = getattr(transformers, architecture)
    folder.mkdir(parents=True, exist_ok=True)
    model_class(model_class.config_class(**sizes)).eval().save_pretrained(folder)
    write_tokenizer(folder, "roberta" if sizes["pad_token_id"] else "bert")
    return folder
