"""The times of tokens, compared with transformers' own search for the cheapest path."""

from typing import Any

import numpy as np
import pytest
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from frameworks.pytorch.speech.word_times import align


@pytest.mark.parametrize(("tokens", "states"), [(1, 1), (1, 9), (9, 1), (5, 40), (40, 5), (30, 120)])
@pytest.mark.parametrize("kind", ["floats", "ties", "nan"])
def test_path_equals_that_of_transformers(tokens: int, states: int, kind: str) -> None:
    random = np.random.default_rng(tokens * states)
    costs: np.ndarray[Any, Any] = random.normal(size=(tokens, states))
    if kind == "ties":
        costs = np.round(costs)
    elif kind == "nan":
        costs[:, states // 2] = np.nan
    for ours, theirs in zip(align(costs), _dynamic_time_warping(costs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
