"""Bounds of the Python calls and files that a request passes: a new stage for every request shows here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import free_port
from tests.e2e.walks import PAGE, configuration, counted, is_queued_image, listed
from tests.support.keyring import make_key, write_keys

# Calls and files. Later versions than Python 3.11 have no calls for comprehensions. A chat stream of 8 tokens and an
# image are alone at the server; tensors, and those with an API key, come on 32 connections. The calls of a chat depend
# on how its steps fall together: 590 to 1,190 were measured. An image has 126.
BOUNDS = {"tensor": (55, 18), "key": (62, 21), "chat": (1300, 72), "image": (129, 33)}
QUEUED_BOUNDS = (254, 47)
"""Of an image whose run takes a slow or busy CPU longer than `inline.LIGHT_S`: a thread runs it."""
_WHEN_SLOW = "app/http/disconnects.py"
"""Passed by a request of which the server watches the connection, as it takes long."""
_COMPILED = "frameworks/pytorch/"
"""The files below depend on the CPU."""


@pytest.mark.extended
def test_request_passes_bounded_calls_and_files(tmp_path: Path) -> None:
    port = free_port()
    found = counted(configuration(tmp_path, port), port)
    assert list(found) == ["tensor", "chat", "image"]
    assert_bounded(found)
    for case, files in listed(PAGE.read_text(encoding="utf-8")).items():
        if is_queued_image(case, found[case]):
            continue
        different = files.symmetric_difference(found[case]["walk"])
        different -= {_WHEN_SLOW}
        different = {each for each in different if not each.startswith(_COMPILED)}
        assert not different, f"{case}: {sorted(different)} differ from the page; run: python -m tests.e2e.walks"


@pytest.mark.extended
def test_request_with_key_passes_bounded_calls(tmp_path: Path) -> None:
    port, key = free_port(), make_key("red")
    write_keys(tmp_path / "keys.toml", key)
    found = counted(configuration(tmp_path, port, with_keys=True), port, key.text)
    assert list(found) == ["key"]
    assert_bounded(found)


def assert_bounded(found: dict[str, Any]) -> None:
    for case, each in found.items():
        calls, files = QUEUED_BOUNDS if is_queued_image(case, each) else BOUNDS[case]
        # As one string: pytest would cut the list of files.
        assert each["calls"] <= calls, json.dumps(each)
        assert len(set(each["walk"]) - {_WHEN_SLOW}) <= files, json.dumps(each)
