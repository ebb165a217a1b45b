"""The dtype of products, and the shapes of tiles that Triton accepts."""

import torch
import triton
import triton.language as tl

# The smallest operand of tl.dot.
_MIN_DOT_ROWS = 16


def dot_dtype(dtype: torch.dtype, of_float8: torch.dtype = torch.float16) -> tl.dtype:
    """Return the dtype of the operands of tl.dot. Triton's interpreter multiplies bfloat16 as integers.

    `of_float8`: the dtype beside float8, whose bytes are uint8.
    """
    dtype = of_float8 if dtype == torch.uint8 else dtype
    if dtype == torch.bfloat16 and triton.knobs.runtime.interpret:
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]


def dot_rows(size: int) -> int:
    """Return the size of a tile of tl.dot that holds `size` rows or columns."""
    rows: int = triton.next_power_of_2(size)
    return max(_MIN_DOT_ROWS, rows)
