"""Buffers of tokens for a GPU; test_gpu checks that they are pinned."""

import numpy as np

from frameworks.pytorch.device.pinned import PINNED, pinned_arrays
from frameworks.text.padding import pad
from memory.buffers import Array, HostBuffers
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool

TOKENS = [[1, 2, 3], [4], []]


class Full:
    def make(self, size_bytes: int) -> Array:
        raise MemoryError(size_bytes)


def test_leases_end_with_block_and_are_reused() -> None:
    pool = TensorPool(MemorySettings())
    pool.add_device(PINNED, HostBuffers())
    for hits in (0, 2):
        with pinned_arrays(pool) as empty:
            tokens = pad(TOKENS, 9, empty=empty)
            assert tokens.input_ids.tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
            assert tokens.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
            assert pool.stats()[PINNED].leases == 2
        stats = pool.stats()[PINNED]
        assert (stats.leases, stats.misses, stats.hits) == (0, 2, hits)


def test_without_pinned_memory_tokens_stay_pageable() -> None:
    none_left, too_small = TensorPool(MemorySettings()), TensorPool(MemorySettings(max_tensor_size=1))
    none_left.add_device(PINNED, Full())
    too_small.add_device(PINNED, HostBuffers())
    for pool in (None, none_left, too_small):
        with pinned_arrays(pool) as empty:
            tokens = pad(TOKENS, 0, empty=empty)
        np.testing.assert_array_equal(tokens.input_ids, [[1, 2, 3], [4, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(tokens.attention_mask, [[1, 1, 1], [1, 0, 0], [0, 0, 0]])
