"""Apply the grammar masks of the sequences: bit masks on the host, addends to the logits on the device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import RoundhouseError
from frameworks.pytorch.generation.sampling.state import SamplingState

MaskWords = np.ndarray[Any, np.dtype[np.int32]]

_WORD_BITS = 32
_BYTE_BITS = 8


class ConstraintMasks:
    """The masks of the rows with a matcher, in one buffer for all steps."""

    def __init__(self, device: torch.device, vocabulary_size: int) -> None:
        self._device = device
        self._vocabulary_size = vocabulary_size
        self._words: MaskWords = np.empty((0, -(-vocabulary_size // _WORD_BITS)), np.int32)
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._addends = torch.from_numpy(np.where(bits, np.float32(0), np.float32(-np.inf))).to(device)
        """float32 [256, 8]: what each byte of a mask adds to its 8 logits."""

    def fill(self, states: Sequence[SamplingState], rows: Sequence[int]) -> Mapping[int, RoundhouseError]:
        """Compute the masks of these rows; return the errors of rows where that fails."""
        if len(rows) > len(self._words):
            self._words = np.empty((len(rows), self._words.shape[1]), np.int32)
        failures: dict[int, RoundhouseError] = {}
        for words, row in zip(self._words, rows, strict=False):
            state = states[row]
            words.fill(0)
            assert state.matcher is not None
            try:
                state.matcher.fill_mask(words)
            except RoundhouseError as error:
                failures[row] = error
                continue
            if state.suppressed_ids:
                self._suppress(words, state.suppressed_ids)
        return failures

    def add_to(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Set disallowed tokens to minus infinity in `logits`, float32 [all rows, vocabulary]."""
        in_bytes = torch.from_numpy(self._words[: len(rows)].view(np.uint8)).to(self._device).int()
        addends = self._addends.index_select(0, in_bytes.view(-1)).view(len(rows), -1)[:, : self._vocabulary_size]
        if len(rows) == len(logits):
            logits.add_(addends)
        else:
            logits.index_add_(0, torch.tensor(rows, device=self._device), addends)

    def _suppress(self, words: MaskWords, token_ids: frozenset[int]) -> None:
        """Disallow these tokens, unless no other is allowed: then the text ends before its minimum length."""
        rest = words.view(np.uint32).copy()
        for token_id in token_ids:
            if 0 <= token_id < self._vocabulary_size:
                rest[token_id // _WORD_BITS] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % _WORD_BITS))
        if rest.any():
            words[:] = rest.view(np.int32)
