"""A nonce is accepted once by all workers, and never where the supervisor cannot note it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.auth.errors import Unauthenticated
from app.auth.failed_key_limit import FailedKeys, Slowdown
from app.auth.nonces import NonceStore
from app.workers.messages import NoteFailedKey, UseNonce
from app.workers.shared.keys import SharedFailures, SharedNonces, WorkerFailures, WorkerNonces
from frameworks.core.errors import Draining, Overloaded
from frameworks.models.replicas.control import Workers
from tests.app.workers.links import Links, linked
from tests.support.clocks import Clock
from tests.support.loops import in_loop

NOW_S = 1_700_000_000


@asynccontextmanager
async def noting() -> AsyncIterator[Links]:
    """Connect workers to a supervisor that notes nonces."""
    workers = Workers()
    SharedNonces(workers, lambda: NOW_S)
    async with linked(workers) as links:
        yield links


@in_loop
async def test_nonce_of_other_worker_refused() -> None:
    async with noting() as links:
        one, other = [WorkerNonces(await links.connect(number)) for number in range(2)]
        await one.use("key", b"a", NOW_S)
        for replayed in (other, one):
            with pytest.raises(Unauthenticated, match="expected a new nonce") as refused:
                await replayed.use("key", b"a", NOW_S)
            assert refused.value.reason == "signature"
        await other.use("key", b"b", NOW_S)
        await other.use("other", b"a", NOW_S)


@in_loop
async def test_concurrent_uses_accepted_once() -> None:
    async with noting() as links:
        users = [WorkerNonces(await links.connect(number)) for number in range(4)]
        uses = [each.use("key", b"%d" % nonce, NOW_S) for nonce in range(50) for each in users]
        outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 50
    assert sum(isinstance(outcome, Unauthenticated) for outcome in outcomes) == 150


@in_loop
async def test_replaced_worker_cannot_replay() -> None:
    async with noting() as links:
        link = await links.connect()
        await WorkerNonces(link).use("key", b"a", NOW_S)
        await links.lose(link)
        with pytest.raises(Unauthenticated):
            await WorkerNonces(await links.connect()).use("key", b"a", NOW_S)


@in_loop
async def test_signature_before_start_refused() -> None:
    async with noting() as links:
        with pytest.raises(Unauthenticated, match="after the server started"):
            await WorkerNonces(await links.connect()).use("key", b"a", NOW_S - 1)


@in_loop
async def test_full_store_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workers.shared.keys.NonceStore", lambda start_s: NonceStore(start_s, max_nonces=1))
    async with noting() as links:
        nonces = WorkerNonces(await links.connect())
        await nonces.use("key", b"a", NOW_S)
        with pytest.raises(Overloaded) as refused:
            await nonces.use("key", b"b", NOW_S)
    assert refused.value.retry_after_s == 301


@in_loop
async def test_lost_supervisor_refuses_all() -> None:
    async with noting() as links:
        link = await links.connect()
        nonces = WorkerNonces(link)
        waiting = asyncio.ensure_future(nonces.use("key", b"a", NOW_S))
        await asyncio.sleep(0)
        await links.lose(link)
        for refused in (waiting, nonces.use("key", b"b", NOW_S)):
            with pytest.raises(Draining):
                await refused


@in_loop
async def test_silent_supervisor_refuses_in_time() -> None:
    workers = Workers()
    workers.on_connect(lambda link: link.handle(UseNonce, lambda question: None))
    async with linked(workers) as links:
        with pytest.raises(Overloaded, match="expected its nonce to be noted"):
            await WorkerNonces(await links.connect(), timeout_s=0.01).use("key", b"a", NOW_S)


@in_loop
async def test_failures_of_all_workers_count_together() -> None:
    workers = Workers()
    SharedFailures(workers, FailedKeys(burst=3, clock=Clock()))
    async with linked(workers) as links:
        one, other = [WorkerFailures(await links.connect(number)) for number in range(2)]
        assert [await each.note("10.0.0.1") for each in (one, other, one, other)] == [False, False, False, True]
        assert await one.note("10.0.0.2") is False


@in_loop
async def test_slowdown_counts_alone_without_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    workers = Workers()
    SharedFailures(workers, FailedKeys(burst=0, clock=Clock()))
    async with linked(workers) as links:
        link = await links.connect()
        slowdown = Slowdown(FailedKeys(burst=1, clock=Clock()), 7, WorkerFailures(link).note)
        with monkeypatch.context() as patched:
            patched.setattr("app.auth.failed_key_limit.asyncio.sleep", sleep)
            await slowdown.wait("10.0.0.1")
            assert delays == [7], "the table of the supervisor counts"
            await links.lose(link)
            await slowdown.wait("10.0.0.1")
            assert delays == [7], "the first failure in the table of the worker"
            await slowdown.wait("10.0.0.1")
            assert delays == [7, 7]


@in_loop
async def test_silent_supervisor_leaves_worker_alone() -> None:
    workers = Workers()
    workers.on_connect(lambda link: link.handle(NoteFailedKey, lambda question: None))
    async with linked(workers) as links:
        assert await WorkerFailures(await links.connect(), timeout_s=0.01).note("10.0.0.1") is None
