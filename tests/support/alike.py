"""Values that are equal but for the order in which a library adds numbers."""

import numpy as np
import pytest

ROUNDING = 1e-6
"""Of a sum of numbers near 1 in float32, whose order depends on the CPU, the threads, the row and the address."""


def check_alike(found: object, expected: object, tolerance: float = ROUNDING) -> None:
    """Check that two values are equal but for `tolerance` in their floats: JSON, arrays, and rows of tables."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            check_alike(found[key], value, tolerance)
    elif isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_alike(one, other, tolerance)
    elif isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True)
    else:
        assert found == expected
