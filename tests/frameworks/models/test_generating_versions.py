"""Test a generating model in the manager: load, generate, drain, death, reload."""

import asyncio
from itertools import count

import pytest
from structlog.testing import capture_logs

from app.observability.tallies import GenerationMetrics
from frameworks.core.errors import Draining, InvalidInput, InvalidModel, ModelFailed
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.generation.sequences import GeneratedToken, SequenceRequest
from frameworks.generation.types import GenerateRequest
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from frameworks.scheduling.steps.counts import StepCounts
from tests.frameworks.scheduling.steps.harness import read_all, sequence_request, text_of, wait_for_arrival
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, make_manager, opened, permit, register, serving, step_dispatcher
from tests.support.step_models import EchoRegistry, StepGate

_ids = count(1)


async def generate(manager: MLFrameworkManager, prompt: str = "abc", max_tokens: int = 5) -> list[GeneratedToken]:
    """Generate tokens as the pipeline does: model, permit, tokens."""
    with permit() as held:
        version = await opened(manager, held)
        held.queue(version.model.requests)
        feed = step_dispatcher(version).open([request(prompt, max_tokens)], held.begin)
        assert version.model.requests.waiting >= 1
        try:
            return await read_all(feed)
        finally:
            feed.close()


def request(prompt: str, max_tokens: int) -> SequenceRequest:
    return sequence_request(next(_ids), prompt, max_tokens)


@in_loop
async def test_generating_model_is_loaded_used_and_unloaded() -> None:
    registry = EchoRegistry()
    async with serving(registry, instances=2) as manager:
        slot = manager.slot("m")
        assert slot.spec is not None
        assert slot.spec.task == "generate"
        assert [model.warm_ups for model in registry.made] == [1, 1]
        texts = await asyncio.gather(*(generate(manager, "abc", 4 + i) for i in range(4)))
        assert list(map(text_of, texts)) == [b"abca", b"abcab", b"abcabc", b"abcabca"]
        assert [len(model.given) for model in registry.made] == [2, 2]
        await soon(lambda: manager.residency.is_idle)
        manager.residency.check_integrity()
        assert slot.requests.inflight == 0
        await manager.unload("m")
        assert [model.is_closed for model in registry.made] == [True, True]
        assert slot.active.step_stats == []


@in_loop
async def test_unload_waits_for_running_texts() -> None:
    gate = Gate()
    registry = EchoRegistry(gate)
    async with serving(registry) as manager:
        reader = task(generate(manager))
        await wait_for_arrival(gate)
        leaving = task(manager.unload("m"))
        await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
        gate.open()
        assert text_of(await reader) == b"abcab"
        await leaving


@in_loop
async def test_counts_survive_reload() -> None:
    async with serving(EchoRegistry()) as manager:
        await generate(manager, "abcd", 6)
        await manager.unload("m")
        await manager.load("m")
        await generate(manager, "abcd", 6)
        assert manager.slot("m").generated == StepCounts(tokens=12, prompt_tokens=8, texts=2)


@in_loop
async def test_reload_after_dead_thread_serves_again() -> None:
    def die(prompts: list[str]) -> None:
        if "die" in prompts:
            raise SystemExit

    registry = EchoRegistry(die)
    async with serving(registry) as manager:
        with capture_logs(), pytest.raises(ModelFailed):
            await generate(manager, "die")
        assert manager.slot("m").state is ModelState.FAILED
        assert not manager.slot("m").active.is_running
        manager.residency.check_integrity()
        await manager.load("m")
        assert text_of(await generate(manager)) == b"abcab"
        assert [model.is_closed for model in registry.made] == [True, False]


@in_loop
async def test_drain_timeout_ends_running_texts() -> None:
    steps = StepGate(1)
    manager = make_manager(EchoRegistry(steps), drain_timeout_s=0.05)
    async with manager:
        register(manager)
        await manager.load("m")
        reader = task(generate(manager, "abc", 4000))
        await soon(lambda: any(stats.running for stats in manager.slot("m").active.step_stats))
    with pytest.raises(Draining):
        await reader
    steps.open()


@in_loop
async def test_settings_without_effect_log_warnings() -> None:
    with capture_logs() as logs:
        async with serving(EchoRegistry(), cache=True, token_ids="own"):
            pass
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "cache has no effect on a model that generates text",
        "token_ids has no effect on a model that computes no embeddings",
    ]


@in_loop
async def test_batch_and_generating_models_reject_wrong_requests() -> None:
    async with serving(FakeRegistry()) as manager:
        engine, times = manager.slot("m").active.engine(), GenerationMetrics()
        with permit() as held, pytest.raises(InvalidInput, match="generates text"):
            await engine.generate(Run(held, Timings()), GenerateRequest(("a",)), times, None, in_pieces=False)
        assert manager.slot("m").active.step_stats == []
        manager.residency.check_integrity()
    async with serving(EchoRegistry()) as manager:
        with pytest.raises(InvalidInput, match="expected a prompt"):
            await ask(manager)


@in_loop
async def test_integrity_check_finds_sequences_without_reader() -> None:
    registry = EchoRegistry()
    async with serving(registry) as manager:
        await generate(manager)
        version = manager.slot("m").active
        await soon(lambda: not version.is_running)
        manager.residency.check_integrity()
        registry.made[0].add(request("abc", 1000))  # without its worker
        await generate(manager)
        await soon(lambda: not version.is_running)
        with pytest.raises(AssertionError, match="holds sequences"):
            manager.residency.check_integrity()


@in_loop
async def test_model_that_fails_to_load_is_failed() -> None:
    async with make_manager(EchoRegistry()) as manager:
        register(manager, file="broken")
        with pytest.raises(InvalidModel, match="broken"):
            await manager.load("m")
        assert manager.slot("m").state is ModelState.FAILED
