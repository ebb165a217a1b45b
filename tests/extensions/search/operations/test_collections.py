"""The end of the server while its collections are opened."""

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from app.auth.principal import ANONYMOUS
from extensions.search.collections import collection
from extensions.search.operations.collections import Collections, ConfiguredCollection
from extensions.search.settings import CollectionEntry
from tests.support.loops import in_loop, soon, task


@pytest.mark.parametrize("is_early", [False, True])
@in_loop
async def test_end_of_server_stops_opening(monkeypatch: pytest.MonkeyPatch, is_early: bool) -> None:
    """The first collection never opens, and the second is not begun."""
    begun: list[str] = []

    async def never(settings: Any, _: object) -> NoReturn:
        begun.append(settings.name)
        await asyncio.Future()
        raise AssertionError

    monkeypatch.setattr(collection, "open_collection", never)
    names = ("first", "second")
    entries = [CollectionEntry(name=name, dimensions=4) for name in names]
    collections = Collections(ConfiguredCollection(each, Path("/absent")) for each in entries)

    async def run() -> dict[str, str]:
        async with collections.running():
            return collections.states(ANONYMOUS)

    if is_early:
        collections.stop_opening()
    running = task(run())
    if not is_early:
        await soon(lambda: bool(begun))
        # As a signal handler, at any point.
        thread = threading.Thread(target=collections.stop_opening)
        thread.start()
        thread.join()
    assert await asyncio.wait_for(running, 60) == dict.fromkeys(names, "opening")
    assert begun == ([] if is_early else ["first"])


@in_loop
async def test_cancelled_start_is_not_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> NoReturn:
        await asyncio.Future()
        raise AssertionError

    monkeypatch.setattr(collection, "open_collection", never)
    entry = CollectionEntry(name="first", dimensions=4)
    collections = Collections([ConfiguredCollection(entry, Path("/absent"))])
    running = task(collections.running().__aenter__())
    await soon(lambda: collections._opening is not None)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
