"""The parts of the compiled code, by name: `int8` and the other formats, `step`, `encoder`, and the adapters of each
dtype.

A part is compiled when its module is imported, unless its code is in the cache. Importing this module compiles nothing.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import get_args

from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiled.matmul.float_linears import FormatName

ADAPTERS = "lora"
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
STEP, ENCODER = "step", "encoder"
_FOLDERS = {ADAPTERS: "matmul", STEP: "decoder_step", ENCODER: "encoder_step"}
"""Of `compiled`, for parts that are not in `dtypes`."""


def adapters_of(dtype: str) -> str:
    """Return the part that adapters of a dtype of torch need, such as `bfloat16`."""
    return f"{ADAPTERS}.{dtype}"


def compile_part(part: str) -> None:
    """Compile a part, or read it from the cache. Raises OSError, and errors of numba."""
    name, _, dtype = part.partition(".")
    module = import_module(f"frameworks.pytorch.compiled.{_FOLDERS.get(name, 'dtypes')}.{name}")
    if dtype:
        import torch

        module.region_address(getattr(torch, dtype))


def missing_parts(parts: Iterable[str]) -> list[str]:
    """Return the parts whose code is not in the cache, in order of their names."""
    names = {_code_of(part): part for part in sorted(parts)}
    return [names[each] for each in code_cache.missing(names)]


def _code_of(part: str) -> str:
    """As jit.code_name, which needs numba."""
    module, _, dtype = part.partition(".")
    return f"{module}._region_{dtype}" if dtype else f"{module}._region"
