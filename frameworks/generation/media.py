"""The images of a prompt, or the source of an encoder: what the model computes of them, and their tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

Positions = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class ImageGroup:
    """Images of a prompt whose vectors are computed together: one image, or all where the model reads them jointly.

    `key`: a hash of the files, below 0, which no token id is. `inputs`: tensors of transformers' processor. `spans`:
    the tokens of the prompt that the vectors replace in their order, as (first, end), ascending.
    """

    key: int
    inputs: Mapping[str, Any]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PromptMedia:
    """The images of a prompt of `num_tokens` tokens. `groups`: by their first tokens, ascending. `positions`: of RoPE,
    int64 [sections, prompt tokens]; None: each token has the position of its index. `inputs`: all tensors of
    transformers' processor, for a model that reads them in one pass of its own. `is_whole`: the prompt is computed in
    one step. `blocks`: spans that a step does not divide, as their tokens see each other. `source_tokens`: of a model
    with an encoder, those that it reads; they take the first `padded_source` tokens of the prompt.
    """

    num_tokens: int
    groups: tuple[ImageGroup, ...]
    inputs: Mapping[str, Any]
    positions: Positions | None = None
    is_whole: bool = False
    blocks: tuple[tuple[int, int], ...] = ()
    source_tokens: int = 0
    padded_source: int = 0

    @property
    def offset(self) -> int:
        """Return the position of a token after the prompt, less its index."""
        return 0 if self.positions is None else int(self.positions.max()) + 1 - self.num_tokens

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors."""
        groups = chain.from_iterable(group.inputs.values() for group in self.groups)
        return sum(getattr(each, "nbytes", 0) for each in chain(groups, self.inputs.values()))

    def positions_of(self, start: int, count: int) -> Positions:
        """Return the positions of tokens from `start` on, int64 [sections, count]; `positions` is not None."""
        positions = self.positions
        assert positions is not None
        sections, length = len(positions), self.num_tokens
        after = np.arange(max(start, length), start + count) + self.offset
        return np.concatenate((positions[:, start : start + count], np.tile(after, (sections, 1))), 1)

    def content_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens of a text, those of images replaced by the hashes of their files: equal ones are equal."""
        content = list(token_ids)
        for group in self.groups:
            for first, end in group.spans:
                content[first:end] = [group.key] * (end - first)
        return content

    def first_missing(
        self, start: int, end: int, is_ready: Callable[[ImageGroup], bool]
    ) -> tuple[int, ImageGroup] | None:
        """Return the first of the tokens from `start` to `end` whose vectors are not ready, and their group."""
        missing = [
            (max(first, start), group)
            for group in self.groups
            for first, last in group.spans
            if first < end and last > start and not is_ready(group)
        ]
        return min(missing, key=lambda each: each[0]) if missing else None

    def end_of_part(self, start: int, end: int) -> int:
        """Return where a part of the prompt ends that begins at `start` and should end at `end`.

        A block that the part would divide is left to the next one, or is whole if the part begins with it.
        """
        if self.is_whole:
            return self.num_tokens if start < self.num_tokens else end
        for first, last in self.blocks:
            if first < end < last:
                return last if first <= start else first
        return end
