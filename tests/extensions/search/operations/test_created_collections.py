"""Collections that are created and deleted at run time, and the settings that are kept of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.auth.errors import Forbidden
from app.auth.principal import ANONYMOUS, Principal
from extensions.search.operations import collections as module
from extensions.search.operations.collections import Collections, ConfiguredCollection
from extensions.search.operations.files import CollectionFiles
from extensions.search.settings import CollectionEntry
from frameworks.core.errors import CollectionExists, CollectionNotFound, Draining, InvalidInput
from frameworks.core.tenants import Tenant
from tests.support.loops import in_loop


def entry(name: str = "made", **keys: Any) -> CollectionEntry:
    return CollectionEntry(name=name, dimensions=2, **keys)


@in_loop
async def test_created_collection_is_kept_and_deleted(tmp_path: Path) -> None:
    files = CollectionFiles(tmp_path / "collections")
    changes: list[list[str]] = []
    configured = [ConfiguredCollection(entry("kept"), tmp_path / "kept")]
    collections = Collections(configured, files=files)
    collections.on_created_changed = lambda: changes.append([each.name for each in collections.created])
    async with collections.running():
        await collections.create(ANONYMOUS, entry(metric="dot", index_rows=0))
        with pytest.raises(CollectionExists):
            await collections.create(ANONYMOUS, entry())
        with pytest.raises(CollectionExists):
            await collections.create(ANONYMOUS, entry("kept"))
        with pytest.raises(Forbidden, match="config file"):
            await collections.delete(ANONYMOUS, "kept")
    again = Collections(configured, files=files)
    async with again.running():
        assert again.visible(ANONYMOUS) == ["kept", "made"]
        assert again.entry(ANONYMOUS, "made") == entry(metric="dot", index_rows=0)
        await again.delete(ANONYMOUS, "made")
        assert again.visible(ANONYMOUS) == ["kept"]
        with pytest.raises(CollectionNotFound):
            again.opened("made")
        with pytest.raises(CollectionNotFound):
            await again.delete(ANONYMOUS, "made")
    assert changes == [["made"]]
    assert list((tmp_path / "collections").iterdir()) == []


@in_loop
async def test_key_creates_and_deletes_its_names_only(tmp_path: Path) -> None:
    tenant = Principal(Tenant("red"), collections=[("red-*",)])
    collections = Collections(files=CollectionFiles(tmp_path))
    async with collections.running():
        with pytest.raises(Forbidden, match="patterns of the key"):
            await collections.create(tenant, entry("blue"))
        await collections.create(ANONYMOUS, entry("blue"))
        await collections.create(tenant, entry("red-1"))
        assert collections.visible(tenant) == ["red-1"]
        with pytest.raises(CollectionNotFound):
            await collections.delete(tenant, "blue")


@in_loop
async def test_order_completes_without_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CREATED", 1)
    collections = Collections(files=CollectionFiles(tmp_path))
    async with collections.running():
        order = asyncio.create_task(collections.create(ANONYMOUS, entry()))
        await asyncio.sleep(0)
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        with pytest.raises(InvalidInput, match="at most 1 collections"):
            await collections.create(ANONYMOUS, entry("other"))  # after the first one
        assert collections.visible(ANONYMOUS) == ["made"]
    with pytest.raises(Draining):
        await collections.create(ANONYMOUS, entry("other"))


def test_damaged_settings_are_left_out(tmp_path: Path) -> None:
    files = CollectionFiles(tmp_path)
    for name, text in (("a", "{"), ("b", entry("c").model_dump_json()), ("d", "x" * 65_537), ("e", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "collection.json").write_text(text, encoding="utf-8")
    (tmp_path / "f").mkdir()
    files.save(entry("f", max_rows=3))
    assert files.read() == [entry("f", max_rows=3)]
    assert CollectionFiles(tmp_path / "absent").read() == []
