"""Norms, rotations and attention of a decoder's rows, for compiled code."""

import math
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.elementwise import exponential
from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats
from frameworks.pytorch.compiled.narrow_numbers import (
    load_bfloat16,
    load_float16,
    load_float32,
    store_bfloat16,
    store_float16,
)

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""Kinds of the numbers of a cache."""
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
def narrow(source: int, target: int, size: int, kind: int) -> None:
    """Round `size` float32 numbers to those of a cache: kind BFLOAT16 or FLOAT16. In place too, if the target is not
    behind the source.
    """
    x = pointer_to_floats(source)
    if kind == BFLOAT16:
        for position in range(size):
            store_bfloat16(target, position, x[position])
    else:
        for position in range(size):
            store_float16(target, position, x[position])


def _scoring(load: Any, width: int) -> Any:
    @compiled
    def score(query: int, scores: int, sizes: Any, keys: int, blocks: Any, seen: Any, scale: Any) -> Any:
        """Write the products of the query and each key, and return the largest."""
        size, block_tokens, block_bytes = sizes
        first, end = seen
        own, shares = pointer_to_floats(query), pointer_to_floats(scores)
        largest = np.float32(-np.inf)
        for index in range(first // block_tokens, (end + block_tokens - 1) // block_tokens):
            start = index * block_tokens
            place = keys + blocks[index] * block_bytes
            for token in range(max(first, start), min(end, start + block_tokens)):
                key = place + width * size * (token - start)
                product = _ZERO
                for position in range(size):
                    product += own[position] * load(key, position)
                product *= scale
                shares[token - first] = product
                largest = max(largest, product)
        return largest

    return score


def _mixing(load: Any, width: int) -> Any:
    @compiled
    def mix(out: int, scores: int, sizes: Any, values: int, blocks: Any, seen: Any) -> None:
        """Add up the values, each times its share."""
        size, block_tokens, block_bytes = sizes
        first, end = seen
        shares, result = pointer_to_floats(scores), pointer_to_floats(out)
        for position in range(size):
            result[position] = _ZERO
        for index in range(first // block_tokens, (end + block_tokens - 1) // block_tokens):
            start = index * block_tokens
            place = values + blocks[index] * block_bytes
            for token in range(max(first, start), min(end, start + block_tokens)):
                value = place + width * size * (token - start)
                share = shares[token - first]
                for position in range(size):
                    result[position] += share * load(value, position)

    return mix


@compiled
def _share(scores: int, count: int, largest: Any) -> Any:
    """Replace scores by their exponentials, and return the sum."""
    shares = pointer_to_floats(scores)
    total = _ZERO
    for index in range(count):
        share = exponential(shares[index] - largest)
        shares[index] = share
        total += share
    return total


def _attention(load: Any, width: int) -> Any:
    """Return the attention over a cache of numbers of `width` bytes that `load` reads as float32."""
    score, mix = _scoring(load, width), _mixing(load, width)

    @compiled
    def attend(query: int, out: int, scores: int, sizes: Any, cache: Any, seen: Any, scale: Any) -> None:
        """Attend with one head's query to the tokens from `seen[0]` to before `seen[1]`.

        `scores`: room for as many float32 numbers. `sizes`: of the head, tokens of a block, bytes from block to block.
        `cache`: addresses of the keys and of the values of the head in block 0, and the numbers of the sequence's
        blocks (int64).
        """
        keys, values, blocks = cache
        largest = score(query, scores, sizes, keys, blocks, seen, scale)
        total = _share(scores, seen[1] - seen[0], largest)
        mix(out, scores, sizes, values, blocks, seen)
        result, factor = pointer_to_floats(out), _ONE / total
        for position in range(sizes[0]):
            result[position] *= factor

    return attend


attend_float32 = _attention(load_float32, 4)
attend_bfloat16 = _attention(load_bfloat16, 2)
attend_float16 = _attention(load_float16, 2)
