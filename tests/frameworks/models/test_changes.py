"""The manager reports each change of a model that other processes must see."""

from pathlib import Path

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.traffic import Share
from tests.frameworks.models.sized_registry import SizedRegistry, make_versions
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop
from tests.support.managing import entry, make_manager, register


def watched(manager: MLFrameworkManager) -> list[str]:
    """Return the list to which the state of "m" is added at each change; `absent` without such a model."""
    seen: list[str] = []

    def note(name: str) -> None:
        slot = manager.slots_by_name.get(name)
        seen.append("absent" if slot is None else slot.active.phase.value)

    manager.on_changed(note)
    return seen


@in_loop
async def test_manager_reports_states_of_load_and_removal() -> None:
    async with make_manager(FakeRegistry()) as manager:
        seen = watched(manager)
        register(manager)
        await manager.load("m")
        assert seen == ["registered", "loading", "ready"]
        del seen[:]
        await manager.remove("m")
        assert seen == ["draining", "unloaded", "absent"]


@in_loop
async def test_manager_reports_failed_registration() -> None:
    async with make_manager(FakeRegistry()) as manager:
        seen = watched(manager)
        with pytest.raises(InvalidModel):
            await manager.add("fake", entry(), Path("broken"))
        assert seen[:4] == ["registered", "loading", "failed", "absent"]


@in_loop
async def test_manager_reports_shares_and_new_versions(tmp_path: Path) -> None:
    async with make_manager(SizedRegistry(), max_model_bytes=9 * 1024**3) as manager:
        slot = register(manager, file=str(make_versions(tmp_path, 1)))
        await manager.load("m")
        make_versions(tmp_path, 2)
        shown: list[tuple[str, list[str], str | None]] = []

        def note(_: str) -> None:
            shown.append((slot.version, list(slot.versions), slot.canary.version if slot.canary else None))

        manager.on_changed(note)
        await manager.split("m", "canary", Share("2", 10.0))
        assert shown[0] == ("1", ["1", "2"], None)
        assert shown[-1] == ("1", ["1", "2"], "2")
        await manager.load("m", "2")
        assert ("2", ["1", "2"], None) in shown
