"""What a decoder computes between its products, row by row: norms, rotations and attention. For compiled code."""

import math
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.elementwise import exponential
from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats

_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def normalize(source: int, target: int, weight: int, size: int, epsilon: Any) -> None:
    """x / √(mean(x²) + ε) · weight of `size` float32 numbers."""
    x, out, factors = pointer_to_floats(source), pointer_to_floats(target), pointer_to_floats(weight)
    total = _ZERO
    for position in range(size):
        total += x[position] * x[position]
    scale = _ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
    for position in range(size):
        out[position] = x[position] * scale * factors[position]


@compiled
def rotate(source: int, target: int, cosines: int, sines: int, size: int) -> None:
    """Rotate a head of `size` numbers, its halves together (Su et al. 2021). `cosines`, `sines`: [size / 2]."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    cosine, sine = pointer_to_floats(cosines), pointer_to_floats(sines)
    half = size // 2
    for position in range(half):
        first, second = x[position], x[position + half]
        out[position] = first * cosine[position] - second * sine[position]
        out[position + half] = second * cosine[position] + first * sine[position]


@compiled
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` float32 numbers."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    for position in range(size):
        out[position] = x[position]


@compiled
def attend(query: int, out: int, scores: int, sizes: Any, cache: Any, seen: Any, scale: Any) -> None:
    """Attend with one head's query to the tokens from `seen[0]` to before `seen[1]`.

    `scores`: room for as many float32 numbers. `sizes`: of the head, tokens of a block. `cache`: addresses of the keys
    and of the values of the head in block 0, bytes from block to block, and the numbers of the sequence's blocks
    (int64).
    """
    size, block_tokens = sizes
    keys, values, block_bytes, blocks = cache
    first, end = seen
    own, shares, result = pointer_to_floats(query), pointer_to_floats(scores), pointer_to_floats(out)
    first_block, end_block = first // block_tokens, (end + block_tokens - 1) // block_tokens
    largest = np.float32(-np.inf)
    for index in range(first_block, end_block):
        start = index * block_tokens
        place = keys + blocks[index] * block_bytes
        for token in range(max(first, start), min(end, start + block_tokens)):
            key = pointer_to_floats(place + 4 * size * (token - start))
            product = _ZERO
            for position in range(size):
                product += own[position] * key[position]
            product *= scale
            shares[token - first] = product
            largest = max(largest, product)
    total = _ZERO
    for index in range(end - first):
        share = exponential(shares[index] - largest)
        shares[index] = share
        total += share
    for position in range(size):
        result[position] = _ZERO
    for index in range(first_block, end_block):
        start = index * block_tokens
        place = values + blocks[index] * block_bytes
        for token in range(max(first, start), min(end, start + block_tokens)):
            value = pointer_to_floats(place + 4 * size * (token - start))
            share = shares[token - first]
            for position in range(size):
                result[position] += share * value[position]
    factor = _ONE / total
    for position in range(size):
        result[position] *= factor
