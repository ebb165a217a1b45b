"""The epilogue of a GEMM: add the bias and what adapters add, apply an operation, and store."""

from typing import Any

from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, inlined, llvm_function, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.simd.elementwise import ADD, MUL, NONE, OPERATIONS, activation
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, PARTS, VECTORS, at, int64, load


@llvm_function
def _write_rows(
    _context: Any, _sums: Any, _target: Any, _other: Any, _row_bytes: Any, _rows: Any, _operation: Any
) -> Any:
    """(addresses of the sums, of the target and of the operand; bytes from row to row of these two; rows; operation) →
    nothing; writes whole blocks, float32.

    A loop in Python would test at each row whether the memory overlaps.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums, target, other = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        row_bytes, rows, operation = arguments[3:]
        for own in OPERATIONS:
            with (
                builder.if_then(builder.icmp_signed("==", operation, int64(own))),
                cgutils.for_range_slice(builder, int64(0), rows, int64(1)) as (row, _),
            ):
                offset = builder.mul(row, row_bytes)
                given = builder.gep(sums, [builder.mul(row, int64(4 * BLOCK))])
                _write_row(builder, own, given, builder.gep(target, [offset]), builder.gep(other, [offset]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), write


def _write_row(builder: Any, operation: int, sums: Any, target: Any, other: Any) -> None:
    kind = VECTORS.floats
    for offset in (4 * VECTORS.lanes * part for part in PARTS):
        found = activation(builder, operation, load(builder, at(builder, sums, offset), kind))
        if operation == MUL:
            found = builder.fmul(found, load(builder, at(builder, other, offset), kind))
        elif operation == ADD:
            found = builder.fadd(found, load(builder, at(builder, other, offset), kind))
        builder.store(found, builder.bitcast(at(builder, target, offset), kind.as_pointer()), align=4)


def store_row(builder: Any, operation: Any, sums: Any, target: Any, other: Any) -> None:
    """Store a row of a whole block of sums, with an operation that is known when the code runs."""
    for own in OPERATIONS:
        with builder.if_then(builder.icmp_signed("==", operation, int64(own))):
            _write_row(builder, own, sums, target, other)


@llvm_function
def _apply_activation(_context: Any, _sums: Any, _operation: Any) -> Any:
    """(address of the sums; operation) → nothing; applies an activation function to those of a whole block in place.
    Other operations change nothing.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums = builder.inttoptr(arguments[0], BYTES)
        for own in (each for each in OPERATIONS if each not in (NONE, MUL, ADD)):
            with builder.if_then(builder.icmp_signed("==", arguments[1], int64(own))):
                for part in PARTS:
                    pointer = builder.bitcast(at(builder, sums, 4 * VECTORS.lanes * part), VECTORS.floats.as_pointer())
                    builder.store(activation(builder, own, builder.load(pointer, align=4)), pointer, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@compiled
def apply_epilogue(sums: int, out: int, rows: Any, columns: Any, epilogue: Any) -> None:
    """Apply the epilogue to the sums of a tile, float32 [rows, BLOCK], and store them. The sums are overwritten.

    `rows`: first, count. `columns`: first, count, number of the outputs. `epilogue`: operation, other operand, bias,
    deltas of adapters and the rows that they change.
    """
    add_bias_and_deltas(sums, rows, columns, epilogue)
    store_sums(sums, out, rows, columns, epilogue)


@compiled
def add_bias_and_deltas(sums: int, rows: Any, columns: Any, epilogue: Any) -> None:
    """Add the bias, and what adapters add, to the sums of a tile, float32 [rows, BLOCK]. Arguments as in
    `apply_epilogue`.
    """
    first, _, outputs = columns
    _, _, bias, (deltas, are_changed) = epilogue
    if bias:
        for row in range(rows[1]):
            _add_bias(sums + 4 * row * BLOCK, bias, first, outputs)
    if deltas:
        _add_deltas(sums, rows, columns, deltas, are_changed)


@compiled
def store_sums(sums: int, out: int, rows: Any, columns: Any, epilogue: Any) -> None:
    """Store the sums of a tile, float32 [rows, BLOCK], with the operation. Arguments as in `apply_epilogue`."""
    first_row, num_rows = rows
    first, count, outputs = columns
    operation, other, _, _ = epilogue
    offset = 4 * (first_row * outputs + first)
    if count == BLOCK:
        _write_rows(sums, out + offset, other + offset, 4 * outputs, num_rows, operation)
        return
    for row in range(num_rows):
        address, own_offset = sums + 4 * row * BLOCK, offset + 4 * row * outputs
        _apply_activation(address, operation)
        _write_part(pointer_to_floats(address), out + own_offset, other + own_offset, count, operation)


@inlined
def _add_deltas(sums: int, rows: Any, columns: Any, deltas: int, are_changed: int) -> None:
    first_row, num_rows = rows
    first, count, outputs = columns
    width = (outputs + BLOCK - 1) // BLOCK * BLOCK
    for row in range(num_rows):
        if pointer_to_integers(are_changed)[first_row + row]:
            own = pointer_to_floats(sums + 4 * row * BLOCK)
            delta = pointer_to_floats(deltas + 4 * ((first_row + row) * width + first))
            for column in range(count):
                own[column] += delta[column]


@inlined
def _add_bias(sums: int, bias: int, first: int, outputs: int) -> None:
    """Add the bias of a block to the sums of a row. `first`: output of the block. `outputs`: of the whole GEMM."""
    own, added = pointer_to_floats(sums), pointer_to_floats(bias + 4 * first)
    for column in range(min(BLOCK, outputs - first)):
        own[column] += added[column]


@inlined
def _write_part(own: Any, out: int, other: int, count: int, operation: int) -> None:
    target, operand = pointer_to_floats(out), pointer_to_floats(other)
    if operation == MUL:
        for column in range(count):
            target[column] = own[column] * operand[column]
    elif operation == ADD:
        for column in range(count):
            target[column] = own[column] + operand[column]
    else:
        for column in range(count):
            target[column] = own[column]
