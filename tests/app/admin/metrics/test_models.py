"""Test the metrics and the description of a model that generates text."""

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

from app.admin.metrics.models import generation_families, process_families
from app.admin.models.descriptions import describe_in_detail
from app.auth.principal import ANONYMOUS
from app.observability.metrics import Observer
from app.observability.visible_counts import Counts
from frameworks.manager import MLFrameworkManager
from frameworks.runtime import BatchModel
from tests.app.inference.generating import generate_request, generating
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, make_manager, register, serving
from tests.support.step_models import CONTEXT, KV_BYTES_PER_TOKEN, StepGate

KV_TOTAL = 4 * CONTEXT * KV_BYTES_PER_TOKEN


def scrape(manager: MLFrameworkManager, observer: Observer) -> dict[tuple[str, str], float]:
    """Return (name, value of the last label) -> value; of histograms only counts and sums."""
    families: list[Any] = list(generation_families(manager.slots, Counts(observer, ANONYMOUS)))
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_bucket")]
    assert {sample.labels["model"] for sample in samples} <= {"m"}
    return {
        (sample.name.removeprefix("roundhouse_"), [*sample.labels.values()][-1]): sample.value for sample in samples
    }


@in_loop
async def test_generated_tokens_and_times_are_counted() -> None:
    started_s = time.perf_counter()
    async with generating(lambda _: time.sleep(0.001)) as served:
        await served.collect(generate_request("abc", n=2, max_tokens=4))
        await asyncio.gather(*(served.collect(generate_request("abcd", "xyz", max_tokens=4)) for _ in range(3)))
        await soon(lambda: not served.manager.slot("m").active.is_running)
        samples = scrape(served.manager, served.observer)
        assert samples["tokens_generated_total", "m"] == 2 * 4 + 6 * 4
        assert samples["prompt_tokens_total", "m"] == 2 * 3 + 3 * 7
        assert samples["prefix_cache_hit_tokens_total", "m"] == 2 + 2 * (3 + 2)
        assert samples["preemptions_total", "m"] == 0
        assert samples["time_to_first_token_seconds_count", "m"] == 4
        assert samples["inter_token_seconds_count", "m"] == 8 * 3
        assert 8 * 3 * 0.001 < samples["inter_token_seconds_sum", "m"] < 8 * (time.perf_counter() - started_s)
        await served.manager.unload("m")
        assert scrape(served.manager, served.observer)["tokens_generated_total", "m"] == 32
        assert scrape(served.manager, served.observer)["kv_cache_bytes", "free"] == 0


@in_loop
async def test_gauges_show_running_and_waiting_sequences() -> None:
    steps = StepGate(0)
    async with generating(steps) as served:
        idle = scrape(served.manager, served.observer)
        assert [idle["sequences", state] for state in ("running", "waiting")] == [0, 0]
        running = task(served.collect(generate_request(*(["ab"] * 6), max_tokens=2000)))

        def are_all_added() -> bool:
            steps.allow_one()
            samples = scrape(served.manager, served.observer)
            return (samples["sequences", "running"], samples["sequences", "waiting"]) == (4, 2)

        await soon(are_all_added)
        samples = scrape(served.manager, served.observer)
        kinds = [samples["kv_cache_bytes", kind] for kind in ("used", "cached", "free")]
        assert kinds[0] >= 4 * 3 * KV_BYTES_PER_TOKEN
        assert kinds[1] == KV_BYTES_PER_TOKEN
        assert sum(kinds) == KV_TOTAL
        running.cancel()
        steps.open()
        await soon(lambda: scrape(served.manager, served.observer)["sequences", "running"] == 0)
        assert scrape(served.manager, served.observer)["kv_cache_bytes", "used"] == 0
        assert scrape(served.manager, served.observer)["sequences", "waiting"] == 0


@in_loop
async def test_batch_model_has_no_generation_series() -> None:
    async with serving(FakeRegistry()) as manager:
        await ask(manager)
        families: list[Any] = list(generation_families(manager.slots, Counts(Observer("none", 1000), ANONYMOUS)))
        assert len(families) == 10
        assert [family.samples for family in families] == [[]] * 10


@in_loop
async def test_restarts_of_isolated_models_are_counted() -> None:
    async with make_manager(FakeRegistry()) as manager:
        for name, isolation in (("a", "none"), ("b", "process"), ("c", "process")):
            slot = register(manager, name, isolation=isolation)
        slot.identity.runs["1"].restarts.update(["hang", "sigbus"])
        slot.identity.runs["2"].restarts.update(["hang"])
        (family,) = process_families(manager.slots)
        counts = {(each.labels["model"], each.labels["reason"]): each.value for each in family.samples}
        assert {key: count for key, count in counts.items() if count} == {("c", "hang"): 2, ("c", "sigbus"): 1}
        # Zeros, as Prometheus sees no growth in the first value of a series.
        zeros = {key for key, count in counts.items() if not count}
        assert zeros >= {("b", "hang"), ("b", "sigsegv"), ("c", "out_of_memory")}
        assert not any(model == "a" for model, _ in counts)


@in_loop
async def test_version_detail_shows_maximum_tokens() -> None:
    async with generating() as served:
        detail = describe_in_detail(served.manager.slot("m"), Counts(served.observer, ANONYMOUS))
        assert detail["task"] == "generate"
        assert detail["version_details"]["1"]["max_tokens"] == CONTEXT


@in_loop
async def test_description_shows_captured_graphs() -> None:
    async with serving(FakeRegistry()) as manager:
        slot, counts = manager.slot("m"), Counts(Observer("none", 1000), ANONYMOUS)
        assert describe_in_detail(slot, counts)["graphs"] is None
        model = cast("BatchModel", slot.active.engine().model)
        model.spec = replace(model.spec, graphs="up to 8 rows")
        assert describe_in_detail(slot, counts)["graphs"] == "up to 8 rows"
