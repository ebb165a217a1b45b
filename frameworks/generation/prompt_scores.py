"""Options of the prompts of a request, and the log probabilities of prompt tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How the prompts of a request are read and reported.

    `add_special_tokens`: whether the special tokens of the model's files precede a text. `suffix`: the text after the
    generated one, for models that fill in the middle. `is_echoed`: each response begins with its prompt, and its end
    token is among the tokens with log probabilities. `top_logprobs`: as Sampling.top_logprobs, for prompt tokens.
    `source_language`, `target_language`: codes of the tokenizer of a model that translates; None: those of its files.
    """

    add_special_tokens: bool = True
    suffix: str | None = None
    is_echoed: bool = False
    top_logprobs: int | None = None
    source_language: str | None = None
    target_language: str | None = None


DEFAULT_OPTIONS = PromptOptions()


class PromptScores:
    """The log probabilities of the tokens of one prompt, except the first, which follows no token.

    Row i belongs to token i + 1. `logprobs`: float32 [rows]. `ranks`: int32 [rows], 1 for the most likely token.
    `top_ids` int32 and `top_logprobs` float32 [rows, k]: the k most likely tokens, by falling probability.
    """

    __slots__ = ("logprobs", "ranks", "sequence_id", "top_ids", "top_logprobs")

    def __init__(self, sequence_id: int, num_tokens: int, num_top: int) -> None:
        """`num_tokens`: of the prompt. The rows are to be filled."""
        rows = max(0, num_tokens - 1)
        self.sequence_id = sequence_id
        self.logprobs: Floats = np.zeros(rows, np.float32)
        self.ranks: Integers = np.zeros(rows, np.int32)
        self.top_ids: Integers = np.zeros((rows, num_top), np.int32)
        self.top_logprobs: Floats = np.zeros((rows, num_top), np.float32)
