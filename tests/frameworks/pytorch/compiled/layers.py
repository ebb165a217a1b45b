"""Layers with a compiled GEMM of every format, and random activations and weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
import torch

from frameworks.pytorch.compiled.cpu_features import has_integers, lanes
from frameworks.pytorch.compiled.matmul.float_linears import FormatName, compiles, make_float
from frameworks.pytorch.encoder_layers.packed_linears import INT8_FORMATS
from frameworks.pytorch.generation.weights import compiled_linears

_NAMES: tuple[FormatName, ...] = ("float32", "float32_bfloat16x3", "float16", "bfloat16")
FLOATS = tuple(filter(compiles, _NAMES))
DTYPES = {
    "float32": torch.float32,
    "float32_bfloat16x3": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

needs_vectors = pytest.mark.skipif(not lanes(), reason="nothing is compiled for this CPU")
needs_integers = pytest.mark.skipif(not has_integers(), reason="no integers are compiled for this CPU")


def formats() -> list[FormatName]:
    """Return the formats that this CPU has."""
    return list(filter(compiles, get_args(FormatName)))


def make(name: FormatName, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Make a layer of weights [outputs, inputs]."""
    if name == "int8":
        return compiled_linears.make_int8(weight, bias)
    if name == "int4":
        return compiled_linears.make_int4(weight, bias)
    if name in INT8_FORMATS:
        return compiled_linears.make_int8_groups(weight, bias, name)
    return make_float(name, weight, bias)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute on so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
