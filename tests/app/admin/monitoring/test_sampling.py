"""Samples at their times, events for changes, and first events without gaps; with the parts of a real server."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.admin.monitoring import sampling as module
from app.admin.monitoring.request_log import MOST_FRESH, OwnRequests
from app.admin.monitoring.sample_ring import INTERVAL_S
from app.admin.monitoring.sampling import LiveFeed, LiveSources
from app.admin.views import Views
from app.auth.principal import ANONYMOUS
from app.config import LoadedSettings, Settings
from app.inference.model_view import ManagedModelView
from app.observability.metrics import Observer
from app.observability.process_use import ProcessMeter
from app.server.build import Host, build_inference
from app.server.parts import Inference
from frameworks.scheduling.byte_limit import ByteLimit
from memory.host import ProcessTotals
from tests.app.admin.monitoring.observed import OPERATOR, TENANTS, FakeReader, named, observe, parse
from tests.support.fake_probe import FakeProbe
from tests.support.loops import in_loop, settle, soon, task


class Server:
    """The parts of a server with the models `m` and `n`, which are not loaded, and a clock that the test sets."""

    def __init__(self) -> None:
        models: Any = [{"name": name, "path": Path(f"/absent/{name}")} for name in ("m", "n")]
        settings = Settings.model_validate({"models": {"onnx_models": tuple(models)}})
        self.observer = Observer("none", 1000)
        loaded = LoadedSettings(settings, Path.cwd())
        self.inference: Inference = build_inference(loaded, self.observer, Host(FakeProbe()), ByteLimit(None))
        manager = self.inference.manager
        self.now_s = 100.0
        self.process = ProcessTotals(3.0, 500, 100)
        self.feed = LiveFeed(
            LiveSources(
                Views(partial(ManagedModelView, manager), self.observer),
                self.observer,
                OwnRequests(self.observer.recent),
                manager.devices,
                manager.residency.ledger,
                self.inference.lifecycle,
                ProcessMeter(measure=lambda _: self.process),
            ),
            lambda: self.now_s,
        )

    def slot(self, name: str) -> Any:
        return self.inference.manager.slots_by_name[name]

    async def sample(self, after_s: float = INTERVAL_S) -> None:
        """Take a sample, as `run` does."""
        self.now_s += after_s
        await self.feed.take_sample()


@in_loop
async def test_first_events_are_the_state_of_now() -> None:
    server, reader = Server(), FakeReader(OPERATOR)
    observe(server.observer, "m", total_s=0.2)
    await server.sample()
    opened = await server.feed.open(reader)
    events = parse(opened.content)
    assert [name for name, _ in events] == ["models", "history", "requests", "sample"]
    models, history, requests, sample = (content for _, content in events)
    assert [(each["name"], each["state"]) for each in models["models"]] == [("m", "registered"), ("n", "registered")]
    assert history["columns"]["requests_per_s"] == [0.5]
    assert [each["model"] for each in requests["requests"]] == ["m"]
    assert sample["server"]["latency_ms"] == pytest.approx(200, rel=1e-5)
    assert sample["models"]["m"]["requests_total"] == 1
    assert [each["id"] for each in sample["devices"]] == ["cpu"]
    assert reader.delivered == []


@in_loop
async def test_totals_stay_after_requests_end() -> None:
    server = Server()
    for status, tenant in ((200, "red"), (200, "blue"), (503, "red")):
        observe(server.observer, "m", tenant, status=status, total_s=0.2)
    server.slot("m").identity.runs["1"].batches.sizes[4] += 2
    server.slot("m").identity.runs["1"].generated.tokens += 9
    for _ in range(2):
        await server.sample()
    [sample] = named(parse((await server.feed.open(FakeReader(OPERATOR))).content), "sample")
    assert sample["server"]["requests_per_s"] == 0
    shown = sample["totals"]
    assert (shown["requests"], shown["failed"], shown["refused"]) == (3, 1, 1)
    assert (shown["tokens"], shown["prompt_tokens"], shown["rows"]) == (9, 0, 8)
    assert shown["queue_ms"] == pytest.approx(50, rel=1e-5)
    assert 100 <= shown["p50_ms"] <= 250  # the bounds of the bucket
    [sample] = named(parse((await server.feed.open(FakeReader(TENANTS["red"]))).content), "sample")
    assert (sample["totals"]["requests"], sample["totals"]["failed"], sample["totals"]["tokens"]) == (2, 1, 0)
    assert "rows" not in sample["totals"]


@in_loop
async def test_process_use_is_for_operators() -> None:
    server = Server()
    await server.sample()
    server.process = ProcessTotals(6.0, 700, 100)
    await server.sample()
    _, history, _, sample = parse((await server.feed.open(FakeReader(OPERATOR))).content)
    assert history[1]["columns"]["cpu_cores"] == [0, 1.5]
    assert history[1]["columns"]["resident_bytes"] == [500, 700]
    assert history[1]["columns"]["engine_cpu_cores"] == [None, None]
    assert (sample[1]["server"]["cpu_cores"], sample[1]["server"]["resident_bytes"]) == (1.5, 700)
    content = (await server.feed.open(FakeReader(TENANTS["red"]))).content
    assert b"cpu_cores" not in content
    assert b"resident_bytes" not in content


@in_loop
async def test_readers_of_a_view_get_one_rendering() -> None:
    server = Server()
    readers = [FakeReader(OPERATOR), FakeReader(ANONYMOUS), FakeReader(TENANTS["red"])]
    for reader in readers:
        await server.feed.open(reader)
    await server.sample()
    contents = [reader.delivered[-1][1] for reader in readers]
    assert contents[0] is contents[1]
    assert contents[2] != contents[0]
    numbers = [number for reader in readers for number, _ in reader.delivered]
    assert len(set(numbers)) == 2


@in_loop
async def test_no_reader_gets_events_before_its_first() -> None:
    server, first, second = Server(), FakeReader(OPERATOR), FakeReader(OPERATOR)
    await server.feed.open(first)
    await server.sample()
    opened = await server.feed.open(second)
    assert opened.number == first.delivered[-1][0]
    await server.sample()
    assert second.delivered == first.delivered[-1:]
    assert second.delivered[0][0] == opened.number + 1


@in_loop
async def test_changed_state_sends_models_once() -> None:
    server, reader = Server(), FakeReader(OPERATOR)
    await server.feed.open(reader)
    await server.feed.look()
    assert reader.delivered == []
    server.slot("m").active.begin_load()
    await server.feed.look()
    await server.feed.look()
    [models] = named(reader.events, "models")
    assert [each["state"] for each in models["models"]] == ["loading", "registered"]


@in_loop
async def test_finished_requests_are_sent_to_their_tenant() -> None:
    server = Server()
    readers = {name: FakeReader(principal) for name, principal in TENANTS.items()}
    observe(server.observer, "m", "red", request_id="before")
    for reader in readers.values():
        await server.feed.open(reader)
    observe(server.observer, "m", "red", status=503, error="full", request_id="after")
    await server.feed.look()
    await server.feed.look()
    [sent] = named(readers["red"].events, "requests")
    assert [(each["id"], each["status"], each["error"]) for each in sent["requests"]] == [("after", 503, "full")]
    assert named(readers["blue"].events, "requests") == []


@in_loop
async def test_many_finished_requests_are_cut() -> None:
    server, reader = Server(), FakeReader(OPERATOR)
    await server.feed.open(reader)
    for number in range(3 * MOST_FRESH):
        observe(server.observer, request_id=str(number))
    await server.feed.look()
    [sent] = named(reader.events, "requests")
    assert [each["id"] for each in sent["requests"]] == [str(3 * MOST_FRESH - 1 - i) for i in range(MOST_FRESH)]
    assert sent["is_cut"]


@in_loop
async def test_closed_reader_gets_nothing() -> None:
    server, reader = Server(), FakeReader(OPERATOR)
    await server.feed.open(reader)
    server.feed.close(reader)
    server.feed.close(reader)
    await server.sample()
    assert reader.delivered == []
    assert server.feed._views == {}


@in_loop
async def test_loop_takes_samples_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    server, reader = Server(), FakeReader(OPERATOR)
    server.feed._clock = asyncio.get_running_loop().time
    running = task(server.feed.run())
    await soon(lambda: len(server.feed.ring.samples) >= 3)
    await server.feed.open(reader)
    await soon(lambda: len(named(reader.events, "sample")) >= 3)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert len(server.feed.ring.samples) >= 5  # those before the reader, and those that it got


@in_loop
async def test_failed_sample_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.005)
    server = Server()
    server.feed._clock = asyncio.get_running_loop().time
    refreshed = 0

    async def fail_once() -> None:
        nonlocal refreshed
        refreshed += 1
        if refreshed == 1:
            raise RuntimeError("the first sample")

    monkeypatch.setattr(server.observer, "refresh", fail_once)
    running = task(server.feed.run())
    await soon(lambda: len(server.feed.ring.samples) >= 2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert refreshed >= 3  # the one that failed, and those of the samples


@in_loop
async def test_times_stay_in_order_when_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's clock is set back an hour: all times are by the clock of now, and the distances are kept."""
    server, reader = Server(), FakeReader(OPERATOR)
    unix_s = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: unix_s)
    for _ in range(3):
        await server.sample()
    unix_s -= 3600
    for _ in range(2):
        await server.sample()
    [history] = named(parse((await server.feed.open(reader)).content), "history")
    assert history["columns"]["t"] == [unix_s - 2.0 * back for back in (4, 3, 2, 1, 0)]


@in_loop
async def test_long_pause_is_one_sample() -> None:
    """The machine slept, or the loop stood still: rates are over the seconds that have passed."""
    server = Server()
    await server.sample()
    for _ in range(60):
        observe(server.observer)
    await server.sample(after_s=120.0)
    [history] = named(parse((await server.feed.open(FakeReader(OPERATOR))).content), "history")
    assert history["columns"]["requests_per_s"] == [0, 0.5]
    assert history["columns"]["t"][1] - history["columns"]["t"][0] == pytest.approx(120)


@in_loop
async def test_clock_that_stands_still_divides_nothing_by_zero() -> None:
    server = Server()
    observe(server.observer)
    await server.sample(after_s=0.0)
    await server.sample(after_s=-5.0)
    [history] = named(parse((await server.feed.open(FakeReader(OPERATOR))).content), "history")
    assert history["columns"]["requests_per_s"] == [1000, 0]


@in_loop
async def test_versions_share_the_traffic() -> None:
    server = Server()
    slot = server.slot("m")
    slot.update_versions({"1": Path("/absent/1"), "2": Path("/absent/2")})
    await server.sample()
    for version, number in (("1", 30), ("2", 10)):
        for _ in range(number):
            observe(server.observer, "m", version=version)
    await server.sample()
    reader = FakeReader(TENANTS["blue"])
    [sample] = named(parse((await server.feed.open(FakeReader(OPERATOR))).content), "sample")
    assert sample["models"]["m"]["versions"] == {"1": 15, "2": 5}
    [sample] = named(parse((await server.feed.open(reader)).content), "sample")
    assert "versions" not in sample["models"]["m"]
    await settle()
