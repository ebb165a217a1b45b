"""CPUs of a process: those of the entry, if the server may use them."""

import os

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.engine.process.cpus import select_cpus


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server use the CPUs 2 to 5 of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5}, raising=False)


def test_entry_without_cpus_selects_none() -> None:
    assert select_cpus(None) is None


def test_usable_cpus_are_selected() -> None:
    assert select_cpus("2,4-5") == frozenset({2, 4, 5})


def test_unusable_cpus_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r'expected CPUs that the server may use \("2-5"\), got "0-1,6" beside them'):
        select_cpus("0-6")


def test_cpus_not_checked_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert select_cpus("0-6") == frozenset(range(7))
