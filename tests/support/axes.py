"""Parameters of a test along several axes, without the product of all of them in every run."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def one_axis_at_a_time(*axes: Sequence[Any]) -> list[Any]:
    """Return the product of the axes for pytest.mark.parametrize.

    Combinations that differ from the first value on more than one axis are nightly tests.
    """
    found = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        is_nightly = sum(place > 0 for place in places) > 1
        found.append(pytest.param(*values, marks=[pytest.mark.nightly] if is_nightly else []))
    return found
