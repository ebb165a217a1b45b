"""Adapters that are added to a model while it serves, and removed after the requests that use them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from frameworks.core.errors import AdapterExists, AdapterNotFound, ModelNotFound, ModelUnloaded, OutOfMemory
from frameworks.core.settings.adapters import AdapterEntry
from tests.app.inference.generating import generate_request, generating
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoRegistry, StepGate

KIB = 1024


def adapter(name: str, size_bytes: int = KIB) -> AdapterEntry:
    """An adapter of the EchoModel: the name of its folder is its size."""
    return AdapterEntry(name=name, path=Path(str(size_bytes)))


@in_loop
async def test_added_adapter_is_in_requests_and_memory() -> None:
    async with generating() as harness:
        manager = harness.manager
        version = manager.slot("m").active
        before = version.memory_bytes
        await manager.add_adapter("m", adapter("red"))
        assert version.memory_bytes - before == KIB
        manager.residency.check_integrity()
        await harness.collect(replace(generate_request("abc"), adapter="red"))
        await harness.collect(generate_request("abc"))
        assert [given.adapter_id for given in harness.models[0].given[-2:]] == [1, 0]
        await manager.remove_adapter("m", "red")
        assert version.memory_bytes == before
        assert harness.models[0].unloaded_adapters == [1]
        with pytest.raises(AdapterNotFound, match="it has none"):
            await harness.collect(replace(generate_request("abc"), adapter="red"))


@in_loop
async def test_removal_waits_for_running_texts() -> None:
    gate = StepGate(1)
    async with generating(gate) as harness:
        manager, [model] = harness.manager, harness.models
        await manager.add_adapter("m", adapter("red"))
        text = asyncio.create_task(harness.collect(replace(generate_request("abc"), adapter="red")))
        await soon(lambda: bool(model.running))
        removal = asyncio.create_task(manager.remove_adapter("m", "red"))
        await soon(lambda: model.spec.generation is not None and not model.spec.generation.adapters)
        with pytest.raises(AdapterNotFound):
            await harness.collect(replace(generate_request("abc"), adapter="red"))
        assert (removal.done(), model.unloaded_adapters) == (False, [])
        gate.open()
        assert (await text).choices[0].text == "abcab"
        await removal
        assert model.unloaded_adapters == [1]


@in_loop
async def test_name_of_removed_adapter_is_free() -> None:
    async with generating() as harness:
        manager = harness.manager
        await manager.add_adapter("m", adapter("red"))
        with pytest.raises(AdapterExists, match="DELETE /models/m/adapters/red"):
            await manager.add_adapter("m", adapter("red"))
        await manager.remove_adapter("m", "red")
        with pytest.raises(AdapterNotFound):
            await manager.remove_adapter("m", "red")
        await manager.add_adapter("m", adapter("red"))
        await harness.collect(replace(generate_request("abc"), adapter="red"))
        assert harness.models[0].given[-1].adapter_id == 2


@in_loop
async def test_adapter_beyond_the_memory_is_forgotten() -> None:
    async with generating() as harness:
        manager = harness.manager
        with pytest.raises(OutOfMemory, match=r"raise memory\.max_model_memory"):
            await manager.add_adapter("m", adapter("huge", 1 << 60))
        assert manager.slot("m").adapters == []
        manager.residency.check_integrity()
        assert harness.models[0].adapter_numbers == []


@in_loop
async def test_refusals_of_unloaded_and_unknown_models() -> None:
    async with generating() as harness:
        with pytest.raises(ModelNotFound):
            await harness.manager.add_adapter("n", adapter("red"))
        await harness.manager.unload("m")
        with pytest.raises(ModelUnloaded):
            await harness.manager.add_adapter("m", adapter("red"))
        await harness.manager.load("m")


@in_loop
async def test_failed_load_of_an_adapter_frees_its_memory() -> None:
    async with generating(registry=EchoRegistry()) as harness:
        [model] = harness.models

        def fail(name: str, folder: Path) -> None:
            raise OutOfMemory("no room on the device")

        model.load_adapter = fail  # type: ignore[method-assign, assignment]
        before = harness.manager.slot("m").memory_bytes
        with pytest.raises(OutOfMemory, match="no room on the device"):
            await harness.manager.add_adapter("m", adapter("red"))
        assert harness.manager.slot("m").memory_bytes == before
        harness.manager.residency.check_integrity()
