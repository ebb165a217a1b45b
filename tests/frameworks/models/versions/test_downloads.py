"""Test loads of models with an address: downloads, their cancellation, and new contents."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import Draining, InvalidModel, ModelFailed, SourceUnavailable
from frameworks.core.progress import states
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.downloads import MAX_DOWNLOADS, Downloads
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.sources.store import SourceStore
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, make_manager
from tests.support.source_folders import SourceFolder

WEIGHTS = bytes(range(256)) * 40
LIMIT = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SourceFolder]:
    """A source with the model `org/a`. Its gate is opened at the end: threads must not wait for it."""
    source = SourceFolder(tmp_path / "source")
    source.write("org/a", weights=WEIGHTS)
    yield source
    if source.gate is not None:
        source.gate.set()


@asynccontextmanager
async def managing(
    source: SourceFolder, limit: int = LIMIT, registry: FakeRegistry | None = None, drain_timeout_s: float = 60
) -> AsyncIterator[MLFrameworkManager]:
    async with make_manager(registry or FakeRegistry(), drain_timeout_s) as manager:
        store = SourceStore(source.folder.parent / "cache", limit, source.open, ())
        manager.residency.fetch = Downloads(lambda: store).fetch
        yield manager


def register(manager: MLFrameworkManager, repository: str = "org/a", **settings: Any) -> ModelSlot:
    entry = OnnxModelEntry(name=repository.split("/")[1], path=SourceAddress("hf", repository), **settings)
    return manager.register("fake", entry, Path("/cache"))


def weights(slot: ModelSlot) -> bytes:
    return (slot.active.path / "model.safetensors").read_bytes()


@in_loop
async def test_load_fetches_files_first(source: SourceFolder) -> None:
    async with managing(source) as manager:
        slot = register(manager)
        with capture_logs() as logs:
            await manager.load_registered()
        assert slot.state is ModelState.READY
        assert weights(slot) == WEIGHTS
        assert await ask(manager, 2, "a") == [4]
        assert slot.downloaded_bytes == source.served_bytes == len(WEIGHTS) + 2
        (line,) = [each for each in logs if each["event"] == "model files downloaded"]
        assert (line["model"], line["address"], line["downloaded_bytes"]) == ("a", "hf://org/a", len(WEIGHTS) + 2)


@in_loop
async def test_lazy_model_is_fetched_for_request(source: SourceFolder) -> None:
    async with managing(source) as manager:
        register(manager, load="lazy")
        await manager.load_registered()
        assert source.listings == []
        assert await ask(manager, 3, "a") == [6]
        assert len(source.listings) == 1


@in_loop
async def test_load_after_eviction_needs_no_source(source: SourceFolder) -> None:
    async with managing(source) as manager:
        slot = register(manager, load="lazy")
        await ask(manager, 1, "a")
        await manager.residency.unload(slot.active, ModelState.REGISTERED)
        source.is_away = True
        assert await ask(manager, 1, "a") == [2]
        assert len(source.listings) == 1
        # Unless the cache was cleared.
        source.is_away = False
        await manager.residency.unload(slot.active, ModelState.REGISTERED)
        await asyncio.to_thread(shutil.rmtree, slot.active.path)
        assert await ask(manager, 1, "a") == [2]
        assert len(source.listings) == 2


@in_loop
async def test_operator_load_of_new_content_switches(source: SourceFolder) -> None:
    registry = FakeRegistry()
    async with managing(source, registry=registry) as manager:
        slot = register(manager)
        await manager.load("a")
        before = slot.active
        await manager.load("a")
        assert slot.active is before, "an equal content was loaded again"
        source.write("org/a", weights=WEIGHTS[::-1])
        gate = Gate()
        registry.on_load = gate
        loading = task(manager.load("a"))
        await soon(gate.arrived.is_set)
        assert slot.active is before
        assert await ask(manager, 1, "a") == [2], "the old content serves meanwhile"
        gate.open()
        await loading
        assert slot.active is not before
        assert weights(slot) == WEIGHTS[::-1]
        assert len(source.listings) == 3


@in_loop
async def test_failed_new_content_leaves_old_one(source: SourceFolder) -> None:
    registry = FakeRegistry()
    async with managing(source, registry=registry) as manager:
        slot = register(manager)
        await manager.load("a")
        source.write("org/a", weights=WEIGHTS[::-1])

        def refuse() -> None:
            raise InvalidModel("refused")

        registry.on_load = refuse
        with pytest.raises(InvalidModel, match="refused"):
            await manager.load("a")
        registry.on_load = None
        await manager.residency.unload(slot.active, ModelState.REGISTERED)
        assert await ask(manager, 1, "a") == [2]
        assert weights(slot) == WEIGHTS, "a request loaded the content that was refused"
        await manager.load("a")
        assert weights(slot) == WEIGHTS[::-1]


@in_loop
async def test_unreachable_source_leaves_loaded_model(source: SourceFolder) -> None:
    async with managing(source) as manager:
        slot = register(manager)
        await manager.load("a")
        source.is_away = True
        with capture_logs():
            await manager.load("a")
        assert await ask(manager, 1, "a") == [2]
        await manager.unload("a")
        with capture_logs():
            await manager.load("a")
        assert slot.state is ModelState.READY, "the files of the cache were not used"


@in_loop
async def test_unreachable_source_without_files_fails_load(source: SourceFolder) -> None:
    source.is_away = True
    async with managing(source) as manager:
        slot = register(manager, load="lazy")
        with pytest.raises(ModelFailed, match="expected an answer, got none"):
            await ask(manager, 1, "a")
        assert slot.state is ModelState.FAILED
        assert slot.active.failures.retry_in_s > 0
        source.is_away = False
        await manager.load("a")
        assert await ask(manager, 1, "a") == [2]


@in_loop
async def test_model_above_limit_is_refused(source: SourceFolder) -> None:
    async with managing(source, limit=len(WEIGHTS)) as manager:
        register(manager)
        with pytest.raises(InvalidModel, match="max_download_bytes"):
            await manager.load("a")
        assert source.served_bytes == 0


@in_loop
async def test_error_shows_address_instead_of_folder(source: SourceFolder) -> None:
    registry = FakeRegistry()
    async with managing(source, registry=registry) as manager:
        slot = register(manager)

        def refuse() -> None:
            raise InvalidModel(f"{slot.active.path / 'config.json'}: not whole")

        registry.on_load = refuse
        with pytest.raises(InvalidModel) as refusal:
            await manager.load("a")
        assert refusal.value.message == slot.reason == "hf://org/a/config.json: not whole"


class TestRunningDownloads:
    @in_loop
    async def test_progress_is_shown_while_it_runs(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            slot = register(manager)
            loading = task(manager.load("a"))
            await soon(lambda: "1" in slot.identity.downloads.running)
            progress = slot.identity.downloads.running["1"].progress
            await soon(lambda: 0 < progress.received_bytes < progress.total_bytes)
            assert progress.total_bytes == len(WEIGHTS) + 2
            await soon(lambda: slot.downloaded_bytes > 0)
            assert slot.state is ModelState.LOADING
            load, download = states(lambda work: work.name == "a")
            assert (load.kind, download.kind, download.unit) == ("load", "download", "bytes")
            assert (download.done, download.total) == (progress.received_bytes, progress.total_bytes)
            source.gate.set()
            await loading
            assert slot.identity.downloads.running == {}
            assert slot.downloaded_bytes == len(WEIGHTS) + 2

    @pytest.mark.parametrize("command", ["unload", "remove"])
    @in_loop
    async def test_unload_cancels_download(self, command: str, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            slot = register(manager)
            loading = task(manager.load("a"))
            await soon(source.is_held.is_set)
            await getattr(manager, command)("a")
            with pytest.raises(Draining):
                await loading
            assert slot.state is ModelState.UNLOADED
            assert slot.identity.downloads.running == {}

    @in_loop
    async def test_cancelled_download_is_resumed(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            slot = register(manager)
            loading = task(manager.load("a"))
            await soon(source.is_held.is_set)
            await manager.unload("a")
            with pytest.raises(Draining):
                await loading
            source.gate.set()
            await soon(lambda: source.reading == 0)
            before = source.served_bytes
            await manager.load("a")
            assert weights(slot) == WEIGHTS
            assert source.served_bytes - before < len(WEIGHTS), "the whole file was fetched again"

    @in_loop
    async def test_end_of_server_cancels_download(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            slot = register(manager)
            loading = task(manager.load_registered())
            await soon(source.is_held.is_set)
        assert slot.state is ModelState.UNLOADED
        with capture_logs():
            await asyncio.wait([loading])

    @in_loop
    async def test_cancelled_caller_leaves_download(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            slot = register(manager)
            loading = task(manager.load("a"))
            await soon(source.is_held.is_set)
            loading.cancel()
            await asyncio.wait([loading])
            source.gate.set()
            await soon(lambda: slot.state is ModelState.READY)

    @in_loop
    async def test_downloads_of_several_models_are_bounded(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        names = [f"org/m{number}" for number in range(MAX_DOWNLOADS + 2)]
        for name in names:
            source.write(name, weights=WEIGHTS)
        async with managing(source) as manager:
            slots = [register(manager, name) for name in names]
            loading = task(manager.load_registered())
            await soon(lambda: source.reading == MAX_DOWNLOADS)
            assert all(slot.state is ModelState.LOADING for slot in slots)
            await manager.unload(slots[-1].name)  # it waits for its turn
            source.gate.set()
            await loading
            assert [slot.state for slot in slots] == [ModelState.READY] * (len(slots) - 1) + [ModelState.UNLOADED]
            assert source.most_reading == MAX_DOWNLOADS

    @in_loop
    async def test_other_models_load_during_download(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            register(manager)
            local = manager.register("fake", OnnxModelEntry(name="local", path=Path("files")), Path("files"))
            loading = task(manager.load_registered())
            await soon(source.is_held.is_set)
            await soon(lambda: local.state is ModelState.READY)
            assert await ask(manager, 1, "local") == [2]
            source.gate.set()
            await loading

    @in_loop
    async def test_request_loads_model_during_ordered_download(self, source: SourceFolder) -> None:
        source.gate = threading.Event()
        async with managing(source) as manager:
            register(manager)
            local = OnnxModelEntry(name="local", path=Path("files"), load="lazy")
            manager.register("fake", local, Path("files"))
            loading = task(manager.load("a"))
            await soon(source.is_held.is_set)
            assert await ask(manager, 1, "local") == [2]
            source.gate.set()
            await loading

    @in_loop
    async def test_failed_registration_leaves_no_model(self, source: SourceFolder) -> None:
        source.is_away = True
        async with managing(source) as manager:
            entry = OnnxModelEntry(name="new", path=SourceAddress("hf", "org/a"))
            with pytest.raises(SourceUnavailable):
                await manager.add("fake", entry, Path("/cache"))
            assert manager.slots == []
