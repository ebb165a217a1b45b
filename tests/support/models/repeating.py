"""A tiny language model whose most likely next token depends on the last one alone, so that its texts repeat."""

from pathlib import Path
from typing import Any

import torch

from tests.support.models.causal_folders import byte_tokenizer, causal_model

CYCLE = 25
"""Tokens after which a text repeats: a token is mostly followed by the next number, the last one of 25 by the first."""
_LOUDNESS = 24.0


def save_repeating_model(folder: Path, loudness: float = _LOUDNESS, **changes: Any) -> Path:
    """`loudness`: of the embedding against what the layers add to it; the lower, the more tokens follow otherwise.
    `changes`: of the config.
    """
    model = causal_model(**changes)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        unit = torch.nn.functional.normalize(table, dim=-1)
        table.copy_(unit * loudness)
        token_ids = torch.arange(len(table))
        following = (token_ids - token_ids % CYCLE + (token_ids + 1) % CYCLE) % len(table)
        model.lm_head.weight[following] = unit
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
