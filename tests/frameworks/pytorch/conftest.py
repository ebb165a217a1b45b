"""The int8 products that this CPU has."""

import pytest

from frameworks.pytorch.int8_choice import exact_range
from frameworks.pytorch.int8_matmul import Int8Kernel


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Int8Kernel:
    """Return the product of the parameter, with the range that is exact on this CPU; skip where torch has it not."""
    weight_range = exact_range(request.param)
    if weight_range is None:
        pytest.skip(f"no {request.param.name} product of int8 on this CPU")
    return Int8Kernel(request.param, weight_range)
