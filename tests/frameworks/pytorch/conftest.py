"""The int8 GEMMs that this CPU has, and the interpreter of Triton's kernels."""

import sys

import pytest

from frameworks.pytorch.int8_choice import exact_range
from frameworks.pytorch.int8_matmul import Int8Kernel
from tests.support.kernel_device import IS_INTERPRETED, speed_up_interpreter


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Int8Kernel:
    """Return the product of the parameter, with the range that is exact on this CPU; skip where torch has it not."""
    weight_range = exact_range(request.param)
    if weight_range is None:
        pytest.skip(f"no {request.param.name} product of int8 on this CPU")
    return Int8Kernel(request.param, weight_range)


@pytest.fixture(scope="module", autouse=True)
def _fast_interpreter() -> None:
    if IS_INTERPRETED and "triton.runtime.interpreter" in sys.modules:
        speed_up_interpreter()
