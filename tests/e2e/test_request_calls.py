"""Bounds of the Python calls and files that a request passes: a new stage for every request shows here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import free_port
from tests.e2e.walks import PAGE, configuration, counted, listed
from tests.support.keyring import make_key, write_keys

# Calls and files. Later versions than Python 3.11 have no calls for comprehensions. A chat stream of 8 tokens and an
# image are alone at the server; tensors, and those with an API key, come on 32 connections. The calls of a chat depend
# on how its steps fall together: 590 to 1,050 were measured.
BOUNDS = {"tensor": (55, 18), "key": (62, 21), "chat": (1200, 71), "image": (120, 32)}
_COMPILED = "frameworks/pytorch/"
"""The files below depend on the CPU."""


@pytest.mark.extended
def test_request_passes_bounded_calls_and_files(tmp_path: Path) -> None:
    port = free_port()
    found = counted(configuration(tmp_path, port), port)
    assert list(found) == ["tensor", "chat", "image"]
    assert_bounded(found)
    for case, files in listed(PAGE.read_text(encoding="utf-8")).items():
        different = files.symmetric_difference(found[case]["walk"])
        assert {each for each in different if not each.startswith(_COMPILED)} == set(), "run: python -m tests.e2e.walks"


@pytest.mark.extended
def test_request_with_key_passes_bounded_calls(tmp_path: Path) -> None:
    port, key = free_port(), make_key("red")
    write_keys(tmp_path / "keys.toml", key)
    found = counted(configuration(tmp_path, port, with_keys=True), port, key.text)
    assert list(found) == ["key"]
    assert_bounded(found)


def assert_bounded(found: dict[str, Any]) -> None:
    for case, each in found.items():
        calls, files = BOUNDS[case]
        # As one string: pytest would cut the list of files.
        assert each["calls"] <= calls, json.dumps(each)
        assert each["files"] <= files, json.dumps(each)
