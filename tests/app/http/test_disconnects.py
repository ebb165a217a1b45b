"""Clients that disconnect: the work for them is cancelled, and only that."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from app.http import disconnects
from app.http.disconnects import DisconnectWatcher, WatchedRequest
from app.protocols.shared.errors import ClientGone
from frameworks.core.errors import InvalidInput
from tests.app.http.receivers import GONE, Messages, receiver


def watched(*messages: dict[str, Any]) -> AbstractAsyncContextManager[None]:
    """Work for a client whose connection reports these messages."""
    return disconnects.watched(DisconnectWatcher(), receiver(*messages))


def test_disconnect_cancels_the_work() -> None:
    async def work() -> str:
        ended = "not at all"
        try:
            async with watched(GONE):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    ended = "by cancellation"
                    raise
        except ClientGone:
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
            await asyncio.sleep(0)
            return ended
        return "as if nothing had happened"

    assert asyncio.run(work()) == "by cancellation"


def test_connected_client_gets_the_result() -> None:
    async def work(seconds: float) -> int:
        async with watched():
            await asyncio.sleep(seconds)
        tasks = asyncio.all_tasks()
        return len(tasks)

    assert asyncio.run(work(0)) == 1
    assert asyncio.run(work(0.15)) == 1  # the watching task ends with its request


def test_error_of_the_work_is_raised() -> None:
    async def work(seconds: float) -> None:
        async with watched():
            await asyncio.sleep(seconds)
            raise InvalidInput("x", "wrong")

    for seconds in (0, 0.15):
        with pytest.raises(InvalidInput):
            asyncio.run(work(seconds))


def test_outer_cancellation_stays_a_cancellation() -> None:
    async def work() -> None:
        async with watched():
            await asyncio.sleep(60)

    async def outside(seconds: float) -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for seconds in (0, 0.15):
        asyncio.run(outside(seconds))


def test_watcher_cancels_only_disconnected_requests() -> None:
    """Requests begin one after the other, so some are young when others are watched."""

    async def work(watch: DisconnectWatcher, is_disconnected: bool) -> str:
        async with disconnects.watched(watch, receiver(GONE) if is_disconnected else receiver()):
            await asyncio.sleep(60 if is_disconnected else 0.2)
        return "done"

    async def run_all() -> list[str | BaseException]:
        watch = DisconnectWatcher()
        tasks = []
        for i in range(20):
            tasks.append(asyncio.create_task(work(watch, is_disconnected=i % 3 == 0)))
            await asyncio.sleep(0.005)
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0.11)
        assert watch.timer is None, "no request is left to watch"
        return outcomes

    outcomes = asyncio.run(run_all())
    assert [type(outcome) for outcome in outcomes] == [ClientGone if i % 3 == 0 else str for i in range(20)]


def test_watcher_watches_only_old_requests() -> None:
    async def three() -> None:
        watch = DisconnectWatcher()
        now_s = time.perf_counter()
        old, young, decoding = (WatchedRequest(watch, receiver(), now_s + each) for each in (-1, 60, -1))
        for one in (old, young, decoding):
            watch.add(one)
        old.is_watched = young.is_watched = True
        watch._watch_old()
        assert [one.watching is None for one in (old, young, decoding)] == [False, True, True]
        await old.end_watch()
        assert list(watch.young) == [young, decoding, old]

    asyncio.run(three())


def test_request_is_watched_again_after_first_watch() -> None:
    async def work() -> None:
        watch = DisconnectWatcher()
        connected = asyncio.Event()

        async def receive() -> Any:
            if not connected.is_set():
                await asyncio.Event().wait()  # the client is connected during the first watch
            return GONE

        request = WatchedRequest(watch, receive, time.perf_counter())
        watch.add(request)
        for _ in range(2):
            request.is_watched = True
            try:
                await asyncio.sleep(60 if connected.is_set() else 0.15)
            finally:
                request.is_watched = False
                assert request.watching is not None
                await request.end_watch()
            connected.set()

    with pytest.raises(ClientGone):
        asyncio.run(asyncio.wait_for(work(), 30))


class FakeConnection:
    def __init__(self) -> None:
        self.on_disconnect: Callable[[], None] | None = None

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        self.on_disconnect = on_disconnect

    def end_watch(self) -> None:
        self.on_disconnect = None


def test_connection_tells_of_disconnect_without_task() -> None:
    async def work() -> None:
        watch, connection = DisconnectWatcher(), FakeConnection()
        request = WatchedRequest(watch, receiver(), time.perf_counter())
        request.fast_path = connection
        watch.add(request)
        tasks = asyncio.all_tasks()
        for is_gone in (False, True):
            request.is_watched = True
            try:
                await asyncio.sleep(0.15)
                assert asyncio.all_tasks() == tasks
                assert connection.on_disconnect is not None
                if is_gone:
                    connection.on_disconnect()
                    await asyncio.sleep(60)
            finally:
                request.is_watched = False
                await request.end_watch()
            assert connection.on_disconnect is None

    with pytest.raises(ClientGone):
        asyncio.run(asyncio.wait_for(work(), 30))


def test_deadline_and_disconnect_raise_different_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disconnect takes precedence over a deadline; a deadline of the work is not a cancellation."""

    async def work(messages: Messages, allowed_s: float) -> None:
        async with watched(*messages), asyncio.timeout(allowed_s):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                raise

    with pytest.raises(ClientGone):
        asyncio.run(work([GONE], 60))
    # The connection is checked long after the deadline, on any machine.
    monkeypatch.setattr(disconnects, "_WATCH_AFTER_S", 60.0)
    for allowed_s in (0.0, 0.02):
        with pytest.raises(TimeoutError):
            asyncio.run(work([GONE], allowed_s))
    with pytest.raises(TimeoutError):
        asyncio.run(work([], 0.15))
