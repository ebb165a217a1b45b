"""Pad the token ids of a batch of texts into one array.

The pad token is chosen by `read_text_config` of `config.py`; for PyTorch by `_pad_token_id` of
`frameworks/pytorch/encoders/loading.py`, and for the text tower of image models of `images/loading.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frameworks.types import Array


@dataclass(frozen=True, slots=True)
class PaddedTokens:
    """`input_ids` and `attention_mask`: int64 [texts, longest]. The mask is 1 on tokens and 0 on padding.

    `token_type_ids`: the same shape for pairs of texts; else None. `unpooled`: number of first
    tokens of each text that the pooling leaves out; None: none. `all_attended`: the mask is 1 on all tokens.
    """

    input_ids: Array
    attention_mask: Array
    token_type_ids: Array | None = None
    unpooled: Sequence[int] | None = None
    all_attended: bool = True

    @property
    def pooling_mask(self) -> Array:
        """The attention mask without the first tokens of each text that are not pooled, int64 [texts, longest]."""
        if self.unpooled is None:
            return self.attention_mask
        positions = np.arange(self.attention_mask.shape[1])
        return self.attention_mask * (positions >= np.asarray(self.unpooled)[:, None])


def pad(
    token_ids: list[list[int]],
    pad_token_id: int,
    min_length: int = 1,
    empty: Callable[..., Array] = np.empty,
    token_type_ids: list[list[int]] | None = None,
    unpooled: Sequence[int] | None = None,
) -> PaddedTokens:
    """Put texts into one array, padded on the right to the longest text, or to `min_length`.

    `empty(shape, dtype)` allocates the arrays. `unpooled`: as in TokenBatch.
    """
    longest = max(1, min_length, max(map(len, token_ids), default=1))
    shape, dtype = (len(token_ids), longest), np.dtype(np.int64)
    input_ids, attention_mask = empty(shape, dtype), empty(shape, dtype)
    input_ids.fill(pad_token_id)
    attention_mask.fill(0)
    for row, ids in enumerate(token_ids):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    if token_type_ids is None:
        return PaddedTokens(input_ids, attention_mask, None, unpooled)
    types = empty(shape, dtype)
    types.fill(0)
    for row, own in enumerate(token_type_ids):
        types[row, : len(own)] = own
    return PaddedTokens(input_ids, attention_mask, types, unpooled)
