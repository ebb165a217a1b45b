"""Write the sums of a tile: with the bias, what adapters add, and an operation."""

from typing import Any

from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.elementwise import ADD, MUL, SILU, silu
from frameworks.pytorch.compiled.formats import BLOCK, VECTORS
from frameworks.pytorch.compiled.jit import compiled, inlined, llvm_function, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.tiles import BYTES, PARTS, at, load, number


@llvm_function
def _write_block(_context: Any, _sums: Any, _target: Any, _other: Any, _operation: Any) -> Any:
    """(addresses of the sums, of the target and of the operand, operation) → nothing, after writing a whole block.

    A loop in Python would test at each row whether the numbers overlap.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = VECTORS.floats
        sums, target, other = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        offsets = [4 * VECTORS.lanes * part for part in PARTS]
        found = [cgutils.alloca_once_value(builder, load(builder, at(builder, sums, each), kind)) for each in offsets]
        for operation, operate in ((MUL, builder.fmul), (ADD, builder.fadd)):
            with builder.if_then(builder.icmp_signed("==", arguments[3], number(operation)), likely=False):
                for offset, own in zip(offsets, found, strict=True):
                    operand = load(builder, at(builder, other, offset), kind)
                    builder.store(operate(builder.load(own), operand), own)
        for offset, own in zip(offsets, found, strict=True):
            place = builder.bitcast(at(builder, target, offset), kind.as_pointer())
            builder.store(builder.load(own), place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), write


@llvm_function
def _apply_silu(_context: Any, _sums: Any) -> Any:
    """(address of the sums) → nothing, after replacing those of a whole block."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums = builder.inttoptr(arguments[0], BYTES)
        for part in PARTS:
            place = builder.bitcast(at(builder, sums, 4 * VECTORS.lanes * part), VECTORS.floats.as_pointer())
            builder.store(silu(builder, builder.load(place, align=4)), place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64), write


@compiled
def finish(sums: int, out: int, rows: Any, columns: Any, how: Any) -> None:
    """Write the sums of a tile, float32 [rows, BLOCK]; they are overwritten.

    `rows`: first, count. `columns`: first, count, number of the outputs. `how`: operation, other, bias, deltas and
    which rows they change.
    """
    first_row, num_rows = rows
    first, count, outputs = columns
    operation, other, bias, (deltas, are_changed) = how
    for row in range(num_rows):
        offset = 4 * ((first_row + row) * outputs + first)
        place = sums + 4 * row * BLOCK
        own = pointer_to_floats(place)
        if bias:
            added = pointer_to_floats(bias + 4 * first)
            for column in range(count):
                own[column] += added[column]
        if deltas and pointer_to_integers(are_changed)[first_row + row]:
            blocks = (outputs + BLOCK - 1) // BLOCK
            delta = pointer_to_floats(deltas + 4 * ((first_row + row) * blocks * BLOCK + first))
            for column in range(count):
                own[column] += delta[column]
        if operation == SILU:
            _apply_silu(place)
        if count == BLOCK:
            _write_block(place, out + offset, other + offset, operation)
        else:
            _write_part(own, out + offset, other + offset, count, operation)


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
