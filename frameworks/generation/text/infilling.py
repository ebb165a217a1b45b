"""Formats of prompts whose middle a model fills in, by the special tokens of the model's tokenizer.

A prompt is: the first token, the text before the middle, the second token, the text after it, the third token. Sources:
the model cards of Qwen2.5-Coder and CodeGemma, StarCoder (Li et al. 2023), CodeLlama (Rozière et al. 2023) and
DeepSeek-Coder (Guo et al. 2024).
"""

from collections.abc import Callable
from typing import NamedTuple

# DeepSeek's names have a full-width bar.
_BAR = "\N{FULLWIDTH VERTICAL LINE}"
_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    (f"<{_BAR}fim▁begin{_BAR}>", f"<{_BAR}fim▁hole{_BAR}>", f"<{_BAR}fim▁end{_BAR}>"),
)


class InfillTokens(NamedTuple):
    """The ids of the tokens before the first text, between the texts, and after the second."""

    before: int
    between: int
    after: int


def find_infill_tokens(id_of: Callable[[str], int | None], vocabulary_size: int) -> InfillTokens | None:
    """Return the tokens of the first format that a tokenizer knows; None if it knows none.

    `id_of`: returns the id of a token by its name, or None.
    """
    for names in _NAMES:
        ids = [token_id for name in names if (token_id := id_of(name)) is not None and token_id < vocabulary_size]
        if len(ids) == len(names):
            return InfillTokens(*ids)
    return None
