"""Test that a share of the requests is exact over every interval, not only on average."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.models.versions.traffic import Share


def taken(percent: float, requests: int) -> list[bool]:
    share = Share("2", percent)
    return [share.takes_next() for _ in range(requests)]


@pytest.mark.parametrize("percent", [0, 1, 5, 10, 33, 50, 99, 100])
def test_share_is_exact_in_every_hundred_requests(percent: int) -> None:
    requests = taken(percent, 500)
    for begin in range(400):
        assert sum(requests[begin : begin + 100]) == percent


@given(percent=st.floats(0, 100), requests=st.integers(1, 500))
def test_share_differs_by_less_than_one_request(percent: float, requests: int) -> None:
    assert abs(sum(taken(percent, requests)) - percent / 100 * requests) < 1 + 1e-6


def test_share_is_spread_evenly() -> None:
    assert taken(25, 8) == [False, False, False, True] * 2
    assert taken(50, 4) == [False, True] * 2
