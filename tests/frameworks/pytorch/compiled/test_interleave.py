"""Words of rows are transposed, for tiles of any CPU."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.frameworks.pytorch.compiled.layers import needs_vectors

pytestmark = [pytest.mark.isa, needs_vectors]

ROOM = 64


@pytest.fixture(scope="module")
def interleaved() -> Callable[[int, int, int, int, int], None]:
    from frameworks.pytorch.compiled.jit import compiled
    from frameworks.pytorch.compiled.simd.interleave import interleave

    @compiled
    def run(source: int, stride: int, target: int, rows: int, words: int) -> None:
        interleave(source, stride, target, rows, words)

    return run


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("words", [1, 3, 4, 8, 15])
def test_words_of_rows_lie_in_turn(interleaved: Callable[..., None], rows: int, words: int) -> None:
    # Words are bits: those of a signalling NaN stay as they are.
    given = np.arange(8 * ROOM, dtype=np.uint32).reshape(8, ROOM) + 0x7F800001
    target = np.zeros((words + 1, rows), dtype=np.uint32)
    interleaved(given.ctypes.data, 4 * ROOM, target.ctypes.data, rows, words)
    assert np.array_equal(target[:words], given[:rows, :words].T)
    assert not target[words].any()
