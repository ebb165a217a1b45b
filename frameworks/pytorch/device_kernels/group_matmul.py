"""Matmuls with int8, int4 and float8 weights in groups: weights are dequantized in registers, after they are read.

A matmul of few rows takes as long as reading the weights: in 4 bits a quarter of the time of 16. With many rows the
arithmetic is the limit, so the weights are dequantized once and multiplied by a library.
"""

import torch
import triton
import triton.language as tl

from frameworks.pytorch.device_kernels.float8 import widen
from frameworks.pytorch.device_kernels.launching import dot_dtype, dot_rows

MAX_ROWS = 64
"""Rows up to which `multiply` is used; it computes any number."""
_MAX_CHUNK = 128
_FEW_ROWS, _FEW_OUTPUTS, _OUTPUTS = 16, 32, 64
_WIDENED_COLUMNS = 1024


@triton.jit
def _value(packed, half, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return the values of bytes in float32; `half`: 0, or 1 for the upper 4 bits."""
    if IS_FLOAT:
        value = widen(packed).to(tl.float32)
    else:
        value = ((packed >> (4 * half)) & 15).to(tl.float32) - 8.0 if BITS == 4 else packed.to(tl.float32)
    return value


@triton.jit
def _multiply_groups(
    rows, values, scales, shifts, bias, made, num_rows, num_outputs, num_inputs, row_stride,
    GROUP: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHUNK: tl.constexpr,
    HAS_SHIFTS: tl.constexpr, HAS_BIAS: tl.constexpr, DOT: tl.constexpr, IS_FLOAT: tl.constexpr,
):  # fmt: skip
    output, row = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_output, is_row, columns = output < num_outputs, row < num_rows, tl.arange(0, CHUNK)
    groups, bytes_of_output = num_inputs // GROUP, num_inputs * BITS // 8
    own_values = values + output.to(tl.int64)[None, :] * bytes_of_output + columns[:, None]
    own_rows = rows + row.to(tl.int64)[:, None] * row_stride + columns[None, :]
    own_groups = output * groups
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, bytes_of_output, CHUNK):
        packed = tl.load(own_values + first, mask=is_output[None, :], other=0)
        for half in tl.static_range(8 // BITS):
            # A byte of 4 bits has a value of the first half of the inputs, and one of the second.
            start = first + half * bytes_of_output
            value = _value(packed, half, BITS, IS_FLOAT)
            states = tl.load(own_rows + start, mask=is_row[:, None], other=0.0)
            group = own_groups + start // GROUP
            scale = tl.load(scales + group, mask=is_output, other=0.0).to(tl.float32)
            total += tl.dot(states.to(DOT), value.to(DOT), input_precision="ieee").to(tl.float32) * scale[None, :]
            if HAS_SHIFTS:
                shift = tl.load(shifts + group, mask=is_output, other=0.0).to(tl.float32)
                total += tl.sum(states.to(tl.float32), 1)[:, None] * shift[None, :]
    if HAS_BIAS:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    target = made + row.to(tl.int64)[:, None] * num_outputs + output[None, :]
    tl.store(target, total.to(made.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _widen(
    values, scales, shifts, made, num_inputs,
    GROUP: tl.constexpr, BITS: tl.constexpr, COLUMNS: tl.constexpr, HAS_SHIFTS: tl.constexpr, IS_FLOAT: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0).to(tl.int64)
    bytes_of_output = num_inputs * BITS // 8
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < bytes_of_output
    packed = tl.load(values + output * bytes_of_output + column, mask=is_column, other=0)
    for half in tl.static_range(8 // BITS):
        inner = column + half * bytes_of_output
        value = _value(packed, half, BITS, IS_FLOAT)
        group = output * (num_inputs // GROUP) + inner // GROUP
        value = value * tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)
        if HAS_SHIFTS:
            value += tl.load(shifts + group, mask=is_column, other=0.0).to(tl.float32)
        tl.store(made + output * num_inputs + inner, value.to(made.dtype.element_ty), mask=is_column)


def fits(inputs: int, group: int, bits: int) -> bool:
    """Return whether groups of adjacent inputs are whole chunks: of each half of the inputs for 4 bits."""
    chunk = chunk_of(group)
    return chunk >= dot_rows(1) and inputs * bits // 8 % chunk == 0 and inputs % group == 0


def chunk_of(group: int) -> int:
    """Return the inputs that are multiplied at once: the largest power of 2 that divides the group."""
    return min(_MAX_CHUNK, group & -group)


def multiply(
    rows: torch.Tensor, values: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None,
    bias: torch.Tensor | None, bits: int,
) -> torch.Tensor:  # fmt: skip
    """Return [rows, outputs] in the dtype of `rows`, [rows, inputs].

    `values`: int8 [outputs, inputs], or uint8 [outputs, inputs / 2] as NibbleWeights has them, or with 8 bits uint8
    [outputs, inputs], the bytes of float8_e4m3fn. `scale`, `shift`: floats
    [outputs, groups]. `bias`: [outputs]. `bits`: 4 or 8. The shapes are those that `fits`.
    """
    num_rows, inputs = rows.shape
    outputs, groups = scale.shape
    made = torch.empty((num_rows, outputs), dtype=rows.dtype, device=rows.device)
    if not num_rows:
        return made
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    group = inputs // groups
    tile_rows = min(MAX_ROWS, dot_rows(num_rows))
    tile_outputs = _FEW_OUTPUTS if num_rows <= _FEW_ROWS else _OUTPUTS
    _multiply_groups[(triton.cdiv(outputs, tile_outputs), triton.cdiv(num_rows, tile_rows))](
        rows, values, scale, scale if shift is None else shift, rows if bias is None else bias, made,
        num_rows, outputs, inputs, rows.stride(0),
        GROUP=group, BITS=bits, ROWS=tile_rows, OUTPUTS=tile_outputs, CHUNK=chunk_of(group),
        HAS_SHIFTS=shift is not None, HAS_BIAS=bias is not None, DOT=dot_dtype(rows.dtype),
        IS_FLOAT=_are_floats(values, bits),
    )  # fmt: skip
    return made


def widened(
    values: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the dequantized weights, [outputs, inputs]. The rest as for `multiply`."""
    outputs, columns = values.shape
    made = torch.empty((outputs, columns * 8 // bits), dtype=dtype, device=values.device)
    block = min(_WIDENED_COLUMNS, triton.next_power_of_2(columns))
    _widen[(outputs, triton.cdiv(columns, block))](
        values, scale, scale if shift is None else shift, made, made.shape[1],
        GROUP=made.shape[1] // scale.shape[1], BITS=bits, COLUMNS=block, HAS_SHIFTS=shift is not None,
        IS_FLOAT=_are_floats(values, bits),
    )  # fmt: skip
    return made


def _are_floats(values: torch.Tensor, bits: int) -> bool:
    return bits == 8 and values.dtype == torch.uint8
