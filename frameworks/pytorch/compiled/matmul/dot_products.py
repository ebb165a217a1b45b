"""Dot products of int8 activations and int8 or int4 weights, in LLVM's language: a few rows times 32 inputs of a block.

Sums are exact. VNNI adds four products of an unsigned and a signed byte to an int32. Without it, x86 adds two products
of int16 to an int32, or two of bytes to an int16. There the sums of a whole group of int4 weights still fit, and those
of int8 weights if the two activations are not both large.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.cpu_features import has_vnni
from frameworks.pytorch.compiled.matmul.float_tiles import accumulators
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK_VECTORS, PARTS, VECTORS, at, function, load, splat

GROUP = 32
"""Inputs of a step."""
_LANES = VECTORS.lanes
_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_BYTES_OF_VECTOR = 4 * _LANES
_INTEGERS = VECTORS.integers(32)
_WORDS = ir.VectorType(_I16, 2 * _LANES)
_OCTETS = ir.VectorType(_I8, 4 * _LANES)
_WIDE_LANES = 16
_QUADS = GROUP // 4
_LOW_NIBBLES = 0x0F0F0F0F
_NIBBLE = 4
Sums = list[list[list[Any]]]
"""Variables [blocks][rows][BLOCK_VECTORS]."""


class DotProduct(ABC):
    """`activation_bytes`: of a quantized activation. `at_once`: activations of a row that lie side by side, so that one
    broadcast reads them. `zero_point`: what is added to each weight in memory. `limits_pairs`: whether the activations
    of inputs 0 and 1, 2 and 3, … of a row may add up to 128 at most in magnitude.
    """

    activation_bytes: int
    at_once: int
    zero_point: int
    group_bytes: int
    limits_pairs: bool = False

    @property
    def is_int4(self) -> bool:
        """Whether weights have 4 bits."""
        return self.group_bytes < GROUP * VECTORS.block

    @abstractmethod
    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        """Add the dot products of a group to int32 accumulators. `x`, `blocks`: addresses (bytes) of the group in the
        tile's activations and in the weights of each block.
        """


@dataclass(frozen=True)
class VnniDotProduct(DotProduct):
    """int8 weights with VNNI: they are unsigned there, with a zero point of 128."""

    activation_bytes: int = 1
    at_once: int = 4
    zero_point: int = 128
    group_bytes: int = GROUP * VECTORS.block

    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        for quad in range(_QUADS):
            for w, own in zip(blocks, sums, strict=True):
                _add_quad(builder, x, [_vector(builder, w, quad, part) for part in PARTS], quad, rows, own)


@dataclass(frozen=True)
class Int4VnniDotProduct(DotProduct):
    """int4 weights with VNNI: a zero point of 8, as in GroupWeights, so from 0 to 15."""

    activation_bytes: int = 1
    at_once: int = 4
    zero_point: int = 8
    group_bytes: int = GROUP * VECTORS.block // 2

    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        for w, own in zip(blocks, sums, strict=True):
            for quad, weights in _nibble_quads(builder, w):
                _add_quad(builder, x, weights, quad, rows, own)


@dataclass(frozen=True)
class Int16PairDotProduct(DotProduct):
    """int8 weights without VNNI, converted to int16."""

    activation_bytes: int = 2
    at_once: int = 2
    zero_point: int = 0
    group_bytes: int = GROUP * VECTORS.block

    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        octets = ir.VectorType(_I8, 2 * _LANES)
        for pair in range(GROUP // 2):
            offsets = [(pair * BLOCK_VECTORS + part) * 2 * _LANES for part in PARTS]
            for w, of_block in zip(blocks, sums, strict=True):
                weights = [builder.sext(load(builder, at(builder, w, each), octets), _WORDS) for each in offsets]
                for row in range(rows):
                    factor = builder.bitcast(_broadcast(builder, x, pair * rows + row), _WORDS)
                    for own, sum_ in zip(weights, of_block[row], strict=True):
                        builder.store(builder.add(_add_pairs(builder, own, factor), builder.load(sum_)), sum_)
            _pin(builder, chain(*sums))


@dataclass(frozen=True)
class LimitedPairDotProduct(VnniDotProduct):
    """The same weights without VNNI: each is 255 at most in memory, and 255 * 128 fits into int16."""

    limits_pairs: bool = True

    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        for quad in range(_QUADS):
            for w, own in zip(blocks, sums, strict=True):
                weights = [_vector(builder, w, quad, part) for part in PARTS]
                _add_quad(builder, x, weights, quad, rows, own, _add_in_pairs)
            _pin(builder, chain(*sums))


@dataclass(frozen=True)
class Int4PairDotProduct(DotProduct):
    """int4 weights without VNNI: the eight sums of two products, 15 * 127 at most, fit into int16."""

    activation_bytes: int = 1
    at_once: int = 4
    zero_point: int = 8
    group_bytes: int = GROUP * VECTORS.block // 2

    def add(self, builder: Any, x: Any, blocks: list[Any], rows: int, sums: Sums) -> None:
        for w, own in zip(blocks, sums, strict=True):
            self._add_block(builder, x, w, rows, own)

    def _add_block(self, builder: Any, x: Any, w: Any, rows: int, sums: list[list[Any]]) -> None:
        narrow = accumulators(builder, rows, _WORDS)
        for each in chain(*narrow):
            builder.store(ir.Constant(_WORDS, [0] * 2 * _LANES), each)
        for quad, weights in _nibble_quads(builder, w):
            for row in range(rows):
                factor = _broadcast(builder, x, quad * rows + row)
                for own, sum_ in zip(weights, narrow[row], strict=True):
                    builder.store(builder.add(_multiply_int8_pairs(builder, own, factor), builder.load(sum_)), sum_)
            _pin(builder, narrow)
        for each, sum_ in zip(chain(*narrow), chain(*sums), strict=True):
            builder.store(builder.add(_add_neighbours(builder, builder.load(each)), builder.load(sum_)), sum_)


def int8_dot_product() -> DotProduct:
    """Return the dot product of int8 weights and activations with a scale for each token, for this CPU."""
    return VnniDotProduct() if has_vnni() else Int16PairDotProduct()


def int8_group_dot_product() -> DotProduct:
    """Return the dot product of int8 weights and activations with a scale for each group, for this CPU.

    There a limit of pairs costs little: a group's scale grows less than that of a whole token.
    """
    return VnniDotProduct() if has_vnni() else LimitedPairDotProduct()


def int4_dot_product() -> DotProduct:
    """Return the dot product of int4 weights for this CPU."""
    return Int4VnniDotProduct() if has_vnni() else Int4PairDotProduct()


def _pin(builder: Any, sums: Iterable[list[Any]]) -> None:
    """Make LLVM compute the accumulators up to here, in registers, before it goes on.

    Sums of integers may be made in any order. LLVM would compute all of one part first, and spill the activations to
    the stack for the other part.
    """
    for each in chain(*sums):
        value = builder.load(each)
        kind = ir.FunctionType(value.type, [value.type])
        builder.store(builder.asm(kind, "", "=v,0", [value], True), each)


def _nibble_quads(builder: Any, w: Any) -> list[tuple[int, list[Any]]]:
    """Return each quad's index and weights: the low 4 bits of a byte are a weight of one of the first four quads, the
    high ones of one of the last four.
    """
    mask = ir.Constant(_INTEGERS, [_LOW_NIBBLES] * _LANES)
    shift = ir.Constant(_INTEGERS, [_NIBBLE] * _LANES)
    half, found = _QUADS // 2, []
    for quad in range(half):
        packed = [_vector(builder, w, quad, part) for part in PARTS]
        found.append((quad, [builder.and_(each, mask) for each in packed]))
        found.append((quad + half, [builder.and_(builder.lshr(each, shift), mask) for each in packed]))
    return found


def _vector(builder: Any, w: Any, quad: int, part: int) -> Any:
    return load(builder, at(builder, w, (quad * BLOCK_VECTORS + part) * _BYTES_OF_VECTOR), _INTEGERS)


def _broadcast(builder: Any, x: Any, index: int) -> Any:
    return splat(builder, load(builder, at(builder, x, 4 * index), _I32), _LANES)


def _add_by_vnni(builder: Any, total: Any, weights: Any, factor: Any) -> Any:
    """Return the int32 accumulator plus the dot products of four unsigned and four signed bytes."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * _LANES}"
    return builder.call(function(builder, name, _INTEGERS, [_INTEGERS] * 3), [total, weights, factor])


def _add_in_pairs(builder: Any, total: Any, weights: Any, factor: Any) -> Any:
    """As `_add_by_vnni`, where the two products of a pair fit into int16 together."""
    return builder.add(_add_neighbours(builder, _multiply_int8_pairs(builder, weights, factor)), total)


def _add_quad(
    builder: Any,
    x: Any,
    weights: list[Any],
    quad: int,
    rows: int,
    sums: list[list[Any]],
    add: Callable[..., Any] = _add_by_vnni,
) -> None:
    """Add the dot products of four inputs of unsigned weights."""
    for row in range(rows):
        factor = _broadcast(builder, x, quad * rows + row)
        for own, sum_ in zip(weights, sums[row], strict=True):
            builder.store(add(builder, builder.load(sum_), own, factor), sum_)


def _add_pairs(builder: Any, first: Any, second: Any) -> Any:
    """Return int32 dot products of two adjacent int16."""
    name = "llvm.x86.avx512.pmaddw.d.512" if _LANES == _WIDE_LANES else "llvm.x86.avx2.pmadd.wd"
    return builder.call(function(builder, name, _INTEGERS, [_WORDS, _WORDS]), [first, second])


def _multiply_int8_pairs(builder: Any, unsigned: Any, signed: Any) -> Any:
    """Return int16 dot products of two adjacent bytes."""
    name = "llvm.x86.avx512.pmaddubs.w.512" if _LANES == _WIDE_LANES else "llvm.x86.avx2.pmadd.ub.sw"
    octets = [builder.bitcast(each, _OCTETS) for each in (unsigned, signed)]
    return builder.call(function(builder, name, _WORDS, [_OCTETS, _OCTETS]), octets)


def _add_neighbours(builder: Any, words: Any) -> Any:
    """Return int32 sums of two adjacent int16."""
    return _add_pairs(builder, words, ir.Constant(_WORDS, [1] * 2 * _LANES))
