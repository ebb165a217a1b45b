"""Long collections exclude their survivors from later ones, and no cycle is lost."""

import gc
import warnings
import weakref
from collections.abc import Iterator

import pytest

from memory import garbage

pytestmark = pytest.mark.extended


class Node:
    """An object in a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[garbage._Collections]:
    """Observed collections of this test alone; each counts as long after it is set so."""
    thresholds, observed = gc.get_threshold(), garbage._Collections()
    # Cycles of earlier tests that were excluded from collections: `collect` would find them, with their open sockets.
    gc.unfreeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    monkeypatch.setattr(garbage, "_collections", observed)
    monkeypatch.setattr(garbage, "_LONG_S", 1e9)
    garbage.shorten_collections()
    gc.disable()
    yield observed
    gc.enable()
    gc.callbacks.remove(observed.observe)
    gc.set_threshold(*thresholds)


@pytest.mark.nightly
def test_long_collection_excludes_survivors(collections: garbage._Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() <= before, "a short collection froze its survivors"
    monkeypatch.setattr(garbage, "_LONG_S", -1.0)
    kept = [Node() for _ in range(1000)]
    gc.collect()
    assert collections.has_frozen
    assert gc.get_freeze_count() > before + len(kept) // 2  # others may be freed meanwhile


@pytest.mark.parametrize("is_long", [True, False])
def test_collect_finds_later_cycles(
    collections: garbage._Collections, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    if is_long:
        monkeypatch.setattr(garbage, "_LONG_S", -1.0)
    node = Node()
    found = weakref.ref(node)
    gc.collect()
    del node
    if is_long:
        gc.collect()
        assert found() is not None, "a frozen cycle was collected"
    garbage.collect()
    assert found() is None


def test_young_collections_do_not_freeze(collections: garbage._Collections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_LONG_S", -1.0)
    gc.collect(0)
    gc.collect(1)
    assert not collections.has_frozen


def test_paused_collections_start_after_imports() -> None:
    before = gc.get_freeze_count()
    try:
        garbage.pause_collections()
        assert not gc.isenabled()
        kept = [Node() for _ in range(1000)]
        garbage.exclude_imports()
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.enable()
