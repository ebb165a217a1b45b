"""The application that is built for its first request, and the start and the end of the parts of a process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.http.deferred import DeferredApplication, run_lifespan

HTTP: Scope = {"type": "http"}


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    yield


async def receive() -> Message:
    return {}


async def ignore(message: Message) -> None:
    pass


class Application:
    """Counts its requests, and how often it was built, by which threads. `error`: of the next build."""

    def __init__(self) -> None:
        self.requests = 0
        self.builders: list[threading.Thread] = []
        self.may_end = threading.Event()
        self.error: Exception | None = None
        self.may_end.set()

    def build(self) -> Any:
        self.builders.append(threading.current_thread())
        assert self.may_end.wait(10)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1


def test_requests_share_one_build() -> None:
    async def ask() -> None:
        await asyncio.gather(*(deferred(HTTP, receive, ignore) for _ in range(3)))
        await deferred(HTTP, receive, ignore)

    application = Application()
    deferred = DeferredApplication(application.build, lifespan)
    asyncio.run(ask())
    assert application.requests == 4
    assert len(application.builders) == 1
    assert application.builders[0] is not threading.current_thread()
    assert deferred.built() == application.answer


def test_failed_build_is_repeated() -> None:
    async def ask() -> None:
        with pytest.raises(RuntimeError, match="a file is absent"):
            await deferred(HTTP, receive, ignore)
        await deferred(HTTP, receive, ignore)

    application = Application()
    application.error = RuntimeError("a file is absent")
    deferred = DeferredApplication(application.build, lifespan)
    asyncio.run(ask())
    assert application.requests == 1
    assert len(application.builders) == 2


def test_cancelled_request_leaves_build_running() -> None:
    async def ask() -> None:
        first = asyncio.ensure_future(deferred(HTTP, receive, ignore))
        while not application.builders:  # noqa: ASYNC110 - a thread builds
            await asyncio.sleep(0.001)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(deferred(HTTP, receive, ignore))
        await asyncio.sleep(0)
        application.may_end.set()
        await second

    application = Application()
    application.may_end.clear()
    deferred = DeferredApplication(application.build, lifespan)
    asyncio.run(ask())
    assert application.requests == 1
    assert len(application.builders) == 1


def test_failed_build_of_cancelled_request_is_repeated() -> None:
    async def ask() -> None:
        first = asyncio.ensure_future(deferred(HTTP, receive, ignore))
        while not application.builders:  # noqa: ASYNC110 - a thread builds
            await asyncio.sleep(0.001)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        application.may_end.set()
        while not deferred._building or not deferred._building.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await deferred(HTTP, receive, ignore)

    application = Application()
    application.error = RuntimeError("a file is absent")
    application.may_end.clear()
    deferred = DeferredApplication(application.build, lifespan)
    asyncio.run(ask())
    assert application.requests == 1
    assert len(application.builders) == 2


def test_parts_start_without_application() -> None:
    application = Application()
    deferred = DeferredApplication(application.build, lifespan)
    assert sent_by(deferred) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not application.builders


@pytest.mark.parametrize("phase", ["startup", "shutdown"])
def test_error_of_part_is_told(phase: str) -> None:
    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        if phase == "startup":
            raise RuntimeError("a part fails")
        yield
        raise RuntimeError("a part fails")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(RuntimeError, match="a part fails"):
        asyncio.run(run_lifespan(failing, receive, send))
    assert sent[-1]["type"] == f"lifespan.{phase}.failed"
    assert "a part fails" in sent[-1]["message"]


def sent_by(deferred: DeferredApplication) -> list[str]:
    """Return the types of the messages in the lifespan of an application."""
    sent: list[str] = []

    async def send(message: Message) -> None:
        sent.append(message["type"])

    asyncio.run(run(deferred, send))
    return sent


async def run(deferred: DeferredApplication, send: Send) -> None:
    await deferred({"type": "lifespan"}, receive, send)
