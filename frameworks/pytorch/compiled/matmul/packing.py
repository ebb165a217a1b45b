"""Pack weights: memory for them, and the order in which a GEMM reads a block."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.matmul.dot_products import GROUP
from frameworks.pytorch.compiled.matmul.formats import Format
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, LINE_BYTES
from frameworks.pytorch.large_pages import Bytes, empty_bytes

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int8]]


def empty_buffer(format_: Format, outputs: int, inputs: int) -> Bytes:
    """Return uint8 memory for packed weights [outputs, inputs], aligned to a vector."""
    return empty_bytes(format_.held_bytes(outputs, inputs))


def empty_parts(sizes: Sequence[int]) -> list[Bytes]:
    """Return memory of these bytes, one part behind the other: together they fill large pages."""
    starts = [0, *accumulate(-(-size // LINE_BYTES) * LINE_BYTES for size in sizes)]
    whole = empty_bytes(starts[-1])
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def blocks_of(values: Any) -> Iterator[tuple[int, Any]]:
    """Yield each block's index and its part of an array [outputs, …], the last one padded with zeros."""
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        if len(block) < BLOCK:
            block = np.concatenate([block, np.zeros((BLOCK - len(block), *block.shape[1:]), dtype=block.dtype)])
        yield start // BLOCK, block


def pack_floats(weight: Floats, format_: Format, dtype: Any) -> Bytes:
    """Return weights [outputs, inputs], rounded to `dtype`, as bytes of [blocks, inputs, outputs of a block]."""
    outputs, inputs = weight.shape
    buffer = empty_buffer(format_, outputs, inputs)
    packed = buffer.view(dtype).reshape(-1, inputs, BLOCK)
    for index, block in blocks_of(weight):
        packed[index] = block.T
    return buffer


def packed_block(block: Any, at_once: int, zero_point: int) -> Bytes:
    """Return int8 weights of a block, [block, inputs], as uint8 [groups, parts, block, at_once] with the zero point
    added.

    The last group is padded with zeros. `at_once`: adjacent inputs of a part.
    """
    rest = -block.shape[1] % GROUP
    filled = np.pad(block, ((0, 0), (0, rest))) if rest else block
    raised = filled.view(np.uint8) + np.uint8(zero_point)
    parts = raised.reshape(BLOCK, -1, GROUP // at_once, at_once)
    ordered: Bytes = np.ascontiguousarray(parts.transpose(1, 2, 0, 3))
    return ordered
