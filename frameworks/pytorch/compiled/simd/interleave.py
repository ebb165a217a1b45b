"""Transpose 32-bit words: a GEMM reads the same word of all rows of a tile at once."""

from typing import Any

from llvmlite import ir
from numba import types

from frameworks.pytorch.compiled.jit import inlined_early, llvm_function, pointer_to_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, at, int64, load

_WORDS = 4
"""Words of 32 bits in a vector here: every CPU has instructions that interleave two vectors of 16 bytes."""
_VECTOR_BYTES = 4 * _WORDS
_I32 = ir.IntType(32)
_VECTOR = ir.VectorType(_I32, _WORDS)
_LOW, _HIGH = [0, 4, 1, 5], [2, 6, 3, 7]


def _interleaver(rows: int) -> Any:
    @llvm_function
    def interleave_vectors(_context: Any, _source: Any, _stride: Any, _target: Any) -> Any:
        """(address of the first row's words, bytes from a row to the next, target) → nothing; writes _WORDS words of
        each row as [words, rows].
        """

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            source, target = (builder.inttoptr(arguments[index], BYTES) for index in (0, 2))
            pointers = [builder.gep(source, [builder.mul(arguments[1], int64(row))]) for row in range(rows)]
            vectors = _interleaved(builder, [load(builder, each, _VECTOR) for each in pointers])
            for index, vector in enumerate(vectors):
                position = at(builder, target, _VECTOR_BYTES * index)
                builder.store(vector, builder.bitcast(position, _VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), write

    return interleave_vectors


def _interleaved(builder: Any, vectors: list[Any]) -> list[Any]:
    """Return the words of the vectors in turn: the first of each, then the second of each, …."""
    count = len(vectors)
    if count == 1:
        return vectors
    if count % 2:
        return [_picked(builder, vectors, range(start, start + _WORDS)) for start in range(0, count * _WORDS, _WORDS)]
    first, second = _interleaved(builder, vectors[::2]), _interleaved(builder, vectors[1::2])
    found = []
    for pair in zip(first, second, strict=True):
        found += [builder.shuffle_vector(*pair, ir.Constant(_VECTOR, mask)) for mask in (_LOW, _HIGH)]
    return found


def _picked(builder: Any, vectors: list[Any], pointers: range) -> Any:
    """Return the words at these positions of all words in turn."""
    found = ir.Constant(_VECTOR, ir.Undefined)
    for index, position in enumerate(pointers):
        word = builder.extract_element(vectors[position % len(vectors)], ir.Constant(_I32, position // len(vectors)))
        found = builder.insert_element(found, word, ir.Constant(_I32, index))
    return found


_interleave1, _interleave2, _interleave3, _interleave4 = (_interleaver(rows) for rows in range(1, 5))
_interleave5, _interleave6, _interleave7, _interleave8 = (_interleaver(rows) for rows in range(5, 9))


@inlined_early
def _interleave_words(rows: int, source: int, stride: int, target: int) -> None:
    """Write _WORDS words of each of 1 to 8 rows."""
    if rows == 8:
        _interleave8(source, stride, target)
    elif rows == 7:
        _interleave7(source, stride, target)
    elif rows == 6:
        _interleave6(source, stride, target)
    elif rows == 5:
        _interleave5(source, stride, target)
    elif rows == 4:
        _interleave4(source, stride, target)
    elif rows == 3:
        _interleave3(source, stride, target)
    elif rows == 2:
        _interleave2(source, stride, target)
    else:
        _interleave1(source, stride, target)


@inlined_early
def interleave(source: int, stride: int, target: int, rows: int, words: int) -> None:
    """Transpose 32-bit words [rows, words] to [words, rows]. `stride`: bytes from a row to the next. `rows`: of a
    tile.
    """
    whole = words // _WORDS * _WORDS
    for first in range(0, whole, _WORDS):
        position = target + 4 * rows * first
        _interleave_words(rows, source + 4 * first, stride, position)
    ordered = pointer_to_floats(target)
    for row in range(rows):
        given = pointer_to_floats(source + row * stride)
        for word in range(whole, words):
            ordered[word * rows + row] = given[word]
