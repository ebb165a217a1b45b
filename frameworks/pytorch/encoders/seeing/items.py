"""Rows of a run from the tensors of transformers' processor, and the cut of long texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frameworks.core.errors import InvalidInput
from frameworks.tasks.types import TaskItem
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Truncation

PROCESSOR_ERRORS = (ValueError, RuntimeError, TypeError, LookupError, ArithmeticError)
"""Errors of a processor of transformers: each has bounds of its own, such as the ratio of the sides of an image."""
PROBES = ("0", "1 2 3 4")
"""Two texts without a common beginning or end."""
_REMEDY = "shorten the text or remove truncate = false"


def item_of(inputs: Mapping[str, Any]) -> TaskItem:
    """Return a row. `inputs`: of the model's own pass, with `input_ids`, int64 [1, tokens].

    Items whose tensors have equal shapes share a run; one with other values runs alone.
    """
    tensors = {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}
    shape = tuple(sorted((name, tuple(each.shape)) for name, each in tensors.items()))
    num_tokens = int(inputs["input_ids"].shape[1])
    nbytes = sum(each.nbytes for each in tensors.values())
    return TaskItem(inputs, num_tokens, shape if len(tensors) == len(inputs) else None, nbytes, num_tokens)


class ContentTokenizer(TextTokenizer):
    """Bounds the texts that transformers' processor reads."""

    def part_of(self, text: str, field: str, truncate: Truncation) -> str:
        """Return a part of a text that has all tokens within the model's limit.

        Raises InvalidInput where `truncate` is False and the text surely exceeds the limit.
        """
        if truncate:
            return self._needed(text, self._config.max_tokens, self._keeps_end(truncate))
        if self._lengths.has_more(text, self._limit):
            raise self._limit.refusal(field, text, f"at most {self._config.max_tokens} tokens", _REMEDY)
        return text

    def cut(
        self, inputs: Mapping[str, Any], probes: Sequence[Sequence[int]], field: str, truncate: Truncation
    ) -> dict[str, Any]:
        """Return the inputs of a long text within the model's limit, with the tokens that the prompt has around it.

        `probes`: token ids of the prompts of PROBES. Raises InvalidInput where `truncate` is False, and where the
        prompt alone exceeds the limit.
        """
        limit, num_tokens = self._config.max_tokens, int(inputs["input_ids"].shape[1])
        if not truncate:
            raise InvalidInput(field, f"expected at most {limit} tokens, got {num_tokens}; {_REMEDY}")
        num_before, num_after = _common(*probes), _common(*(each[::-1] for each in probes))
        left = limit - num_before - num_after
        if left < 0:
            raise InvalidInput(field, f"expected a prompt within {limit} tokens, got {limit - left}; shorten it")
        start = num_tokens - num_after - left if self._keeps_end(truncate) else num_before
        kept = [*range(num_before), *range(start, start + left), *range(num_tokens - num_after, num_tokens)]
        return {name: each[:, kept] for name, each in inputs.items()}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
