"""Test loads of pipelines, and the loads of the models that they run."""

import asyncio
from pathlib import Path
from unittest.mock import patch

from structlog.testing import capture_logs

from extensions.pipelines.loader import PipelineLoader
from extensions.pipelines.settings import FRAMEWORK, PipelineModelEntry
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions import states as version_states
from frameworks.models.versions.slot import ModelSlot
from tests.frameworks.models.sized_registry import SizedRegistry, register_lazy, states
from tests.support.batch_models import Gate
from tests.support.fake_probe import GIB
from tests.support.loops import in_loop, soon, task
from tests.support.managing import make_manager, opened, permit, register
from tests.support.pipelines import call, pipeline


def register_pipeline(manager: MLFrameworkManager, *models: str) -> ModelSlot:
    """Register the pipeline "p": each model doubles the output of the model before."""
    steps, value = [], "x"
    for model in models:
        steps.append(call(f"by-{model}", model, {"x": value}))
        value = f"by-{model}.y"
    entry = PipelineModelEntry.of(pipeline(["x"], {"y": value}, *steps))
    manager.composites[FRAMEWORK] = PipelineLoader(manager.slots_by_name, manager.parts, {})
    return manager.register(FRAMEWORK, entry, Path("pipelines"))


@in_loop
async def test_ordered_load_loads_lazy_models() -> None:
    async with make_manager(SizedRegistry()) as manager:
        register_lazy(manager, "a", "b")
        register_pipeline(manager, "a", "b")
        await manager.load("p")
        assert states(manager) == {"a": "ready", "b": "ready", "p": "ready"}


@in_loop
async def test_ordered_model_loads_beside_waiting_pipeline() -> None:
    """The model of the pipeline waits for the orders of other models, and the pipeline for its model."""
    registry = SizedRegistry()
    async with make_manager(registry) as manager:
        register_lazy(manager, "a", "b", "c")
        register_pipeline(manager, "a")
        gate = registry.gates["b"] = Gate()
        loads = [task(manager.load("b"))]
        await soon(gate.arrived.is_set)
        loads += [task(manager.load(name)) for name in ("p", "c")]
        await soon(lambda: manager.slot("a").active.load_task is not None)
        await soon(lambda: manager.residency.ledger.is_ordered(manager.slot("c").active))
        gate.open()
        await asyncio.gather(*loads)
        assert registry.loads == ["b", "c", "a"]


@in_loop
async def test_failed_model_is_not_retried_at_start() -> None:
    """Its retry is due when the pipeline is loaded. Another model would be evicted for it."""
    registry = SizedRegistry()
    registry.broken.add("a")
    with patch.object(version_states, "delay_after", lambda failures: 0.0), capture_logs():
        async with make_manager(registry, max_model_bytes=GIB) as manager:
            register(manager, "a")
            register(manager, "b")
            pipelines = register_pipeline(manager, "a")
            await manager.load_registered()
            assert states(manager) == {"a": "failed", "b": "ready", "p": "failed"}
            assert pipelines.reason == 'step "by-a": its model failed; the log of the server has the reason'
            assert registry.loads == ["a", "b"]
            registry.broken.clear()
            with permit() as held:
                await opened(manager, held, "p")
            assert states(manager) == {"a": "ready", "b": "registered", "p": "ready"}


@in_loop
async def test_pipeline_of_lazy_model_waits_for_request() -> None:
    async with make_manager(SizedRegistry()) as manager:
        register_lazy(manager, "a")
        register_pipeline(manager, "a")
        with capture_logs():
            await manager.load_registered()
        assert states(manager) == {"a": "registered", "p": "registered"}
        with permit() as held:
            await opened(manager, held, "p")
        assert states(manager) == {"a": "ready", "p": "ready"}
