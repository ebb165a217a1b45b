"""Several clients of one host in the loop of the test: their requests meet, and each gets what is its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.progress import working
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import SPAN_BYTES
from frameworks.engine.process.host import hosted_engine, session
from frameworks.engine.process.wire.messages import Answer, Cancel, Counted, Infer, LoadProgress, Proceed, SpecLearned
from frameworks.engine.process.wire.serialization import request_to_plain, spec_from_plain
from frameworks.types import Batch, ProductTrial, TextRequest, Value
from tests.frameworks.engine.process.host.test_hosted_model_times import tokenizer
from tests.frameworks.engine.process.sharing import rows_counted, sharing, value_of
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.engine_hosts import (
    ArrayModel,
    TextModel,
    array_rows,
    attached,
)
from tests.support.loops import HANGS_AFTER_S, in_loop, settle, soon


@in_loop
async def test_requests_of_clients_meet_in_batch() -> None:
    model = ArrayModel(runs_by_shape=False)
    async with sharing(model) as links:
        owner, *others = links
        rounds = 0
        # The batcher has to measure some runs first. Each client has one request at a time.
        while [2] not in model.executed:
            rounds += 1
            # Each client numbers its own requests.
            assert {link.infer(array_rows(1, 4, first)) for first, link in enumerate(links)} == {rounds}
            answers = [value_of(await link.next(Answer))[0][0] for link in links]
            assert answers == [0.0, 2.0, 4.0]
        await soon(lambda: rows_counted(owner) == 3 * rounds)
        assert not any(link.counts.batches.sizes for link in others)


@in_loop
async def test_sampled_requests_of_clients_link_one_batch() -> None:
    model = ArrayModel(runs_by_shape=False)
    async with sharing(model) as links:
        spans = [bytes([number]) * SPAN_BYTES for number in (1, 2)]
        # The batcher has to measure some runs first. The last client's requests are not sampled.
        while True:
            for link, span in zip(links, [*spans, b""], strict=True):
                link.infer(array_rows(1, 4, 0), span=span)
            one, other, unsampled = [await link.next(Answer) for link in links]
            assert (len(one.runs), len(other.runs), unsampled.runs) == (1, 1, [])
            if one.runs[0].span == other.runs[0].span:
                break
        exported, linked = sorted([one.runs[0], other.runs[0]], key=lambda run: len(run.requests), reverse=True)
        assert sorted(exported.requests) == spans
        assert linked == exported._replace(requests=())
        assert exported.rows in (2, 3)


@in_loop
async def test_tenant_is_one_object_for_clients() -> None:
    async with sharing(DoublingModel()) as (owner, first, second):
        engine = owner.process._host.engine
        assert engine is not None
        tenants: list[Tenant] = []
        submit = engine.submit

        def noting(batch: Any, priority: Any, begin: Any, timings: Any, tenant: Tenant) -> Any:
            tenants.append(tenant)
            return submit(batch, priority, begin, timings, tenant)

        engine.submit = noting  # type: ignore[assignment]
        plain = request_to_plain(numbers(1))
        for link in (owner, first, second):
            for number, tenant in ((91, ("a", 2.0, False)), (92, ("b", 1.0, False)), (93, ("", 1.0, False))):
                link.send(Infer(number, plain, 5, tenant, 0.0))
            for _ in range(3):
                await link.next(Answer)
        assert [each.name for each in tenants] == ["a", "b", ""] * 3
        assert len({id(each) for each in tenants}) == 3
        assert tenants[2] is DEFAULT_TENANT


@in_loop
async def test_learned_spec_reaches_all_clients() -> None:
    class LearningModel(ArrayModel):
        def infer(self, batch: Batch) -> dict[str, Value]:
            self.spec = replace(self.spec, unbatched_because="its rows differ")
            return super().infer(batch)

    async with sharing(LearningModel()) as (owner, first, second):
        first.infer(array_rows(1, 4))
        links = [owner, first, second]
        for link in links:
            await soon(lambda link=link: bool(link.of(SpecLearned)))  # type: ignore[misc]
        # Also the clients that connect later.
        links.append(await attached(owner))
        for link in links:
            assert spec_from_plain((await link.next(SpecLearned)).spec).unbatched_because == "its rows differ"
            await settle()
            assert not link.of(SpecLearned)
        links[-1].channel.close()


@in_loop
async def test_changed_kernels_are_sent_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_engine, "KERNELS_S", 0.01)
    model = ArrayModel()
    model.spec = replace(model.spec, awaits_kernels=True)
    async with sharing(model) as links:
        with working("compile", "m") as work:
            work.phase("kernels", 2, "kernels", 1)
            assert await links[0].next(LoadProgress) == LoadProgress("kernels", 1, 2, "kernels")
        product = ProductTrial(4, 4, 1, "compiled")
        model.spec = replace(model.spec, awaits_kernels=False, products=(product,))
        for link in links:
            await soon(lambda link=link: bool(link.of(SpecLearned)))  # type: ignore[misc]
            assert spec_from_plain((await link.next(SpecLearned)).spec).products == (product,)


@in_loop
async def test_counts_of_clients_are_sent_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_engine, "COUNTS_S", HANGS_AFTER_S)
    monkeypatch.setattr(session, "COUNTS_S", HANGS_AFTER_S)
    async with sharing(ArrayModel()) as (owner, first, _):
        first.infer(array_rows(1, 4))
        await first.next(Answer)
        await settle()
        assert rows_counted(owner) == 0
        owner.infer(array_rows(2, 4))
        await owner.next(Answer)
        assert rows_counted(owner) == 3


@in_loop
async def test_counts_follow_request_that_waited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hosted_engine, "COUNTS_S", 0.001)
    async with sharing(TextModel(tokenizer(tmp_path), "embed")) as (owner, first, _):
        number = first.infer(TextRequest(["the cat"]), is_metered=True)
        await first.next(Counted)
        for _ in range(3):
            tick = owner.process._host.tick
            await soon(lambda tick=tick: owner.process._host.tick is not tick)  # type: ignore[misc]
        first.send(Proceed(number))
        await first.next(Answer)
        await soon(lambda: rows_counted(owner) == 1)


@in_loop
async def test_cancelled_request_of_client_is_counted() -> None:
    gate = Gate()
    async with sharing(DoublingModel(gate)) as (owner, first, _):
        number = first.infer(numbers(1))
        # A batch that is cancelled before its thread has begun it never runs.
        await soon(gate.arrived.is_set)
        first.send(Cancel(number))
        await settle()
        gate.open()
        await soon(lambda: rows_counted(owner) == 1)
