"""Sums of the stand-in for AMX equal those of exact fractions, and those of the CPU where it has tiles."""

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from frameworks.pytorch.compiled.cpu_features import has_amx
from frameworks.pytorch.compiled.jit import llvm_function
from tests.support.amx_tiles import AmxTiles
from tests.support.pair_products import add_pair_products, rounded_sum

ROWS, PAIRS, OUTPUTS = 16, 16, 16
FRACTION_BITS, LEAST_EXPONENT = 23, -126
EXPONENTS = {"near": (120, 134), "tiny": (0, 80), "large": (180, 254), "all": (0, 254), "failed": (250, 255)}
"""Biased exponents of bfloat16: products of `tiny` numbers are denormal, those of `large` overflow, and numbers with
255 are infinite or NaN."""
TILES = AmxTiles()
NEEDS_TILES = pytest.mark.skipif(not has_amx(), reason="the CPU has no AMX")
FINITE = ["near", "tiny", "large", "all"]

pytestmark = pytest.mark.isa


def numbers(*shape: int, kind: str, seed: int) -> Any:
    """Return random bits of bfloat16, with some zeros."""
    random = np.random.default_rng(seed)
    low, high = EXPONENTS[kind]
    exponents, signs = random.integers(low, high + 1, shape), random.integers(0, 2, shape)
    bits = signs << 15 | exponents << 7 | random.integers(0, 128, shape)
    return np.where(random.random(shape) < 0.05, signs << 15, bits).astype(np.uint16)


def operands(kind: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return the sums, the rows and the weights of an instruction."""
    sums = (numbers(ROWS, OUTPUTS, kind=kind, seed=seed).astype(np.uint32) << 16 | 0x5A5A).view(np.float32)
    weights = numbers(PAIRS, OUTPUTS, 2, kind=kind, seed=seed + 2)
    return sums, numbers(ROWS, PAIRS, 2, kind=kind, seed=seed + 1), weights


def widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def exact(number: Any) -> Fraction:
    """Return a finite number. Denormal numbers are zero."""
    return Fraction(float(number)) if abs(float(number)) >= 2.0**LEAST_EXPONENT else Fraction(0)


def rounded(value: Fraction) -> Fraction | float:
    """Round to 24 bits, to nearest even; too small numbers to zero, too large ones to infinity."""
    if not value:
        return value
    exponent = math.floor(math.log2(abs(value.numerator)) - math.log2(value.denominator))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
    unit = Fraction(2) ** (exponent - FRACTION_BITS)
    result = round(value / unit) * unit
    if abs(result) >= 2**128:
        return math.copysign(math.inf, result)
    return result if abs(result) >= Fraction(2) ** LEAST_EXPONENT else Fraction(0)


def plus(first: Fraction | float, second: Fraction | float) -> Fraction | float:
    """Return the rounded sum. Only numbers that are not finite are floats."""
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return rounded(first + second)
    return float(first) + float(second)


def expected_sum(start: Any, row: Any, weights: Any) -> float:
    """Return the sum of one row and one output. `row`, `weights`: float32 [pairs, 2]."""
    pair: list[Fraction | float] = [Fraction(0), Fraction(0)]
    for own, other in zip(row, weights, strict=True):
        pair = [plus(pair[place], exact(own[place]) * exact(other[place])) for place in range(2)]
    return float(plus(exact(start), plus(*pair)))


@pytest.mark.parametrize("kind", FINITE)
def test_pair_products_equal_sums_of_fractions(kind: str) -> None:
    sums, rows, weights = operands(kind)
    found = add_pair_products(sums, rows, weights)
    wide_rows, wide_weights = widened(rows), widened(weights)
    for row, output in [(row, (5 * row + 3) % OUTPUTS) for row in range(ROWS)]:
        expected = expected_sum(sums[row, output], wide_rows[row], wide_weights[:, output])
        assert found[row, output] == np.float32(expected) or (math.isnan(expected) and np.isnan(found[row, output]))


def test_sum_of_any_exponents_is_rounded_once() -> None:
    """float64 would round 1 + 2^-24 + 2^-80 to 1 + 2^-24, and float32 then to 1."""
    numbers = np.array([1, 1, 1, -1], dtype=np.float32)
    products = np.array([2**-24 + 2.0**-70, 2**-24, 3 * 2**-24, -(2**-24)])
    found = rounded_sum(numbers, products)
    one_product = rounded_sum(np.array([2**-24], dtype=np.float32), np.array([1 + 2.0**-52]))
    assert found.tolist() == [1 + 2**-23, 1, 1 + 2**-22, -1]
    assert one_product.tolist() == [1 + 2**-23]


@pytest.mark.parametrize("kind", EXPONENTS)
def test_row_of_pair_products_ignores_other_rows(kind: str) -> None:
    sums, rows, weights = operands(kind)
    together = add_pair_products(sums, rows, weights)
    order = np.random.default_rng(9).permutation(ROWS)
    elsewhere = add_pair_products(sums[order], rows[order], weights)
    alone = [add_pair_products(sums[row : row + 1], rows[row : row + 1], weights) for row in range(ROWS)]
    assert np.array_equal(elsewhere, together[order], equal_nan=True)
    assert np.array_equal(np.concatenate(alone), together, equal_nan=True)


@cache
def instruction(by_cpu: bool) -> Any:
    """Compile one product of tiles: (addresses of the rows, the weights of two registers, the sums) -> nothing."""
    from frameworks.pytorch.compiled.amx import amx_registers
    from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, int64

    @llvm_function
    def add(_context: Any, _rows: Any, _weights: Any, _sums: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            rows, weights, sums = (builder.inttoptr(each, BYTES) for each in arguments)
            row_bytes = int64(2 * OUTPUTS * 4)
            amx_registers.move_accumulators(builder, "tileloadd64", sums, 1, row_bytes)
            amx_registers.matmul_step(builder, (rows, weights), int64(0), int64(0), 1)
            amx_registers.move_accumulators(builder, "tilestored64", sums, 1, row_bytes)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), write

    configure, release = amx_registers.configure, amx_registers.release

    def run(rows: int, weights: int, sums: int) -> None:
        configure()
        add(rows, weights, sums)
        release()

    with pytest.MonkeyPatch.context() as patch:
        if not by_cpu:
            patch.setattr(amx_registers, "function", TILES.function)
        return numba.njit(types.void(*[types.int64] * 3))(run)


def added(sums: Any, rows: Any, weights: Any, *, by_cpu: bool) -> Any:
    """Return the sums [rows, outputs of two registers] after one product of tiles."""
    found = sums.copy()
    instruction(by_cpu)(rows.ctypes.data, weights.ctypes.data, found.ctypes.data)
    return found


@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize("by_cpu", [False, pytest.param(True, marks=NEEDS_TILES)], ids=["stand-in", "CPU"])
def test_instruction_adds_pair_products(by_cpu: bool, kind: str) -> None:
    for seed in range(0, 60, 6):
        (first, rows, left), (second, _, right) = operands(kind, seed), operands(kind, seed + 3)
        weights, sums = np.concatenate([left, right], axis=1), np.concatenate([first, second], axis=1)
        found, expected = added(sums, rows, weights, by_cpu=by_cpu), add_pair_products(sums, rows, weights)
        is_nan = np.isnan(expected)
        assert np.array_equal(np.isnan(found), is_nan)
        assert np.array_equal(found[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))
        order = np.random.default_rng(seed).permutation(ROWS)
        moved = added(sums[order], rows[order], weights, by_cpu=by_cpu)
        assert np.array_equal(moved, found[order], equal_nan=True)
    assert not TILES.errors
