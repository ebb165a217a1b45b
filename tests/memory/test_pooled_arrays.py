"""Pooled arrays: large ones are leased, small ones and objects are not."""

import numpy as np
import pytest

from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, TensorPool

FLOAT32 = np.dtype(np.float32)
ROW = (1, PAYS_FROM_BYTES // 4 // 2)


@pytest.fixture
def pool() -> TensorPool:
    return TensorPool(MemorySettings(max_tensor_size=4 * PAYS_FROM_BYTES))


@pytest.mark.parametrize(("elements", "leases"), [(-1, 0), (0, 1), (1, 1), (PAYS_FROM_BYTES // 4 * 3 + 1, 0)])
def test_empty_leases_between_minimum_and_maximum_size(pool: TensorPool, elements: int, leases: int) -> None:
    array = PooledArrays(pool).empty((PAYS_FROM_BYTES // 4 + elements,), FLOAT32)
    assert (array.dtype, array.shape) == (FLOAT32, (PAYS_FROM_BYTES // 4 + elements,))
    assert pool.stats()[HOST].leases == leases


def test_object_arrays_are_not_leased(pool: TensorPool) -> None:
    arrays = PooledArrays(pool)
    words = np.full((PAYS_FROM_BYTES // 8,), "a", object)
    assert arrays.concatenate([words, words]).tolist() == ["a"] * (2 * len(words))
    assert arrays.empty(words.shape, words.dtype).tolist() == [None] * len(words)
    assert pool.stats()[HOST].leases == 0


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_concatenate_equals_numpy(pool: TensorPool, rows: int) -> None:
    random = np.random.default_rng(rows)
    parts = [random.standard_normal(ROW, np.float32) for _ in range(rows)]
    joined = PooledArrays(pool).concatenate(parts)
    np.testing.assert_array_equal(joined, np.concatenate(parts), strict=True)
    assert pool.stats()[HOST].leases == (rows in (2, 5))


def test_concatenate_reuses_buffers(pool: TensorPool) -> None:
    arrays, parts = PooledArrays(pool), [np.ones(ROW, np.float32)] * 3
    for _ in range(20):
        assert arrays.concatenate(parts).sum() == 3 * ROW[1]
    stats = pool.stats()[HOST]
    assert (stats.misses, stats.hits, stats.leased_bytes) == (1, 19, 0)
