"""States in blocks equal contiguous states."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.frameworks.pytorch.compiled.layers import needs_vectors, random

pytestmark = [pytest.mark.isa, needs_vectors]

NUMBERS = 32
"""Of a row in a block."""
EPSILON = 1e-5
TOLERANCE = 1e-6
ROWS = 5


class Compiled(NamedTuple):
    copy: Any
    normalize: Any


@pytest.fixture(scope="module")
def compiled_functions() -> Compiled:
    from frameworks.pytorch.compiled.decoder_step.blocked_states import copy_pieces, rms_norm_row
    from frameworks.pytorch.compiled.jit import compiled

    @compiled
    def copy(source: int, source_bytes: int, target: int, target_bytes: int, count: int) -> None:
        copy_pieces(source, source_bytes, target, target_bytes, count)

    @compiled
    def normalize(parts: Any, weight: int, target: Any, is_rounded: int) -> None:
        rms_norm_row(parts, weight, np.float32(EPSILON), target, is_rounded)

    return Compiled(copy, normalize)


def blocks_of(rows: torch.Tensor) -> torch.Tensor:
    """Return [blocks, rows, NUMBERS]."""
    return rows.view(len(rows), -1, NUMBERS).transpose(0, 1).contiguous()


@given(count=st.integers(1, 9), row=st.integers(0, ROWS - 1))
def test_copied_pieces_are_one_row(compiled_functions: Compiled, count: int, row: int) -> None:
    rows = random(ROWS, NUMBERS * count, seed=1)
    blocks, target = blocks_of(rows), torch.full((NUMBERS * count + 1,), torch.nan)
    compiled_functions.copy(
        blocks[0, row].data_ptr(), blocks.stride(0) * 4, target.data_ptr(), blocks.stride(1) * 4, count
    )
    assert torch.equal(target[:-1], rows[row])
    assert target[-1].isnan()


@given(count=st.integers(1, 9), row=st.integers(0, ROWS - 1), scale=st.floats(1e-3, 1e3))
def test_rms_norm_of_pieces_equals_torch(compiled_functions: Compiled, count: int, row: int, scale: float) -> None:
    rows, weight = random(ROWS, NUMBERS * count, seed=1) * scale, random(NUMBERS * count, seed=2)
    blocks = blocks_of(rows)
    exact, rounded = torch.zeros(count, NUMBERS), torch.zeros(count, NUMBERS, dtype=torch.bfloat16)
    parts = (blocks[0, row].data_ptr(), blocks.stride(0) * 4, count)
    compiled_functions.normalize(parts, weight.data_ptr(), (exact.data_ptr(), exact.stride(0) * 4), 0)
    compiled_functions.normalize(parts, weight.data_ptr(), (rounded.data_ptr(), rounded.stride(0) * 2), 1)
    expected = torch.nn.functional.rms_norm(rows[row].double(), weight.shape, weight.double(), EPSILON)
    assert torch.allclose(exact.view(-1).double(), expected, rtol=TOLERANCE, atol=0)
    assert torch.equal(rounded, exact.bfloat16())
