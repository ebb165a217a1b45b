"""16-bit rows are written to a KV cache, and read from an embedding."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.frameworks.pytorch.compiled.layers import needs_vectors, random

pytestmark = [pytest.mark.isa, needs_vectors]

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
AT_ONCE = 8


class Compiled(NamedTuple):
    scatter_rows: Any
    widen: Any


@pytest.fixture(scope="module")
def compiled_functions() -> Compiled:
    from frameworks.pytorch.compiled.attention.cache_rows import ROWS_AT_ONCE, scatter_rows, widen
    from frameworks.pytorch.compiled.jit import compiled

    assert ROWS_AT_ONCE == AT_ONCE

    @compiled
    def scatter(source: int, target: int, size: int, stride: int) -> None:
        scatter_rows(source, target, size, stride)

    @compiled
    def widened(source: int, target: int, size: int, kind: int) -> None:
        widen(source, target, size, kind)

    return Compiled(scatter, widened)


@given(size=st.integers(1, 70), first=st.sampled_from([0, 8, 16, 24]))
def test_scattered_rows_are_columns(compiled_functions: Compiled, size: int, first: int) -> None:
    rows = random(AT_ONCE, size, seed=1).bfloat16()
    block = torch.zeros(size, 32, dtype=torch.bfloat16)
    compiled_functions.scatter_rows(rows.data_ptr(), block.data_ptr() + 2 * first, size, 32)
    expected = torch.zeros_like(block)
    expected[:, first : first + AT_ONCE] = rows.T
    assert torch.equal(block, expected)


@pytest.mark.parametrize("dtype", KINDS)
@given(size=st.integers(1, 70))
def test_widened_elements_are_the_same(compiled_functions: Compiled, dtype: torch.dtype, size: int) -> None:
    elements, target = random(size, seed=1).to(dtype), torch.full((size + 1,), torch.nan)
    compiled_functions.widen(elements.data_ptr(), target.data_ptr(), size, KINDS[dtype])
    assert torch.equal(target[:-1], elements.float())
    assert target[-1].isnan()
