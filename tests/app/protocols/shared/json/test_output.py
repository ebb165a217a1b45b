"""Test that lists written in blocks equal lists written at once."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.json.output import list_to_json, list_to_json_string

ITEMS = st.integers(0, 700).flatmap(
    lambda count: st.lists(st.sampled_from(['"', "\\", "é", "\n", "\u2028", "🐟", "a"]), min_size=count, max_size=count)
)


def describe(item: str) -> dict[str, Any]:
    return {"token": item, "top": [{item: None}]}


@given(ITEMS)
def test_blocks_of_list_equal_whole(items: list[str]) -> None:
    wanted = [describe(item) for item in items]
    assert orjson.dumps(list_to_json(items, describe)) == orjson.dumps(wanted)
    assert orjson.dumps(list_to_json_string(items, describe)) == orjson.dumps(orjson.dumps(wanted).decode())


@pytest.mark.parametrize("count", [255, 256, 257, 512, 513])
def test_number_of_items_is_kept(count: int) -> None:
    assert orjson.loads(orjson.dumps(list_to_json(range(count), str))) == [str(i) for i in range(count)]


@pytest.mark.parametrize("count", [10, 300])
def test_arrays_in_items_become_numbers(count: int) -> None:
    written = list_to_json(range(count), lambda i: {"vector": np.array([i, 0.5], np.float32)})
    read = orjson.loads(orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY))
    assert read == [{"vector": [i, 0.5]} for i in range(count)]


def test_each_block_is_written_by_itself() -> None:
    """Other threads run between two calls of the writer; within one they do not."""
    fragment = list_to_json(range(1000), str)
    assert isinstance(fragment, orjson.Fragment)
    assert isinstance(list_to_json(range(256), str), list)
