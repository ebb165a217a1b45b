"""Generated text leaves whole or in pieces; whoever leaves, fails or is late gives back all that it held."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.http import sse
from frameworks.errors import DeadlineExceeded, Draining, ModelFailed, Overloaded
from frameworks.generation.types import GenerateRequest, Piece
from tests.app.protocols.generating import Caller, Endless, EndpointHarness, ScriptedGeneration
from tests.support.loops import in_loop, soon, task

PIECES = (Piece(0, "Hal"), Piece(0, "lo"), Piece(0, "!", "stop"))
LAST = {"text": "!", "index": 0, "finish_reason": "stop", "tokens_generated": 2, "prompt_tokens": 3}


async def told(caller: Caller) -> Any:
    """The error in the last event, after which there is none."""
    assert caller.is_at_end
    *before, last = caller.events
    assert "[DONE]" not in before
    assert last["error"]["request_id"] == "mine"
    return last["error"]


class TestWhole:
    @in_loop
    async def test_it_is_answered_like_everything_else(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(*PIECES))
        caller = Caller(harness, max_tokens=5)
        await caller.send_request()
        assert (caller.status, caller.headers["content-type"]) == (200, "application/json")
        assert b'"text":"Hallo!"' in caller.bodies[0]
        assert isinstance(harness.generate_requests[0], GenerateRequest)
        harness.check_completed(200)

    @in_loop
    async def test_its_errors_have_their_status(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], DeadlineExceeded("too late")))
        caller = Caller(harness)
        await caller.send_request()
        assert caller.status == 504
        harness.check_completed(504)

    @in_loop
    async def test_a_caller_that_leaves_ends_it(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(asyncio.Event()))
        caller = Caller(harness)
        asking = task(caller.send_request())
        await asyncio.sleep(0.01)
        assert harness.version.references
        caller.disconnect()
        await asking
        assert caller.messages == []
        harness.check_completed(499)


class TestStream:
    @in_loop
    async def test_every_piece_is_an_event(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(*PIECES))
        caller = Caller(harness, stream=True)
        await caller.send_request()
        assert caller.status == 200
        assert caller.headers.keys() == {"content-type", "cache-control", "x-request-id", "server-timing"}
        assert (caller.headers["content-type"], caller.headers["cache-control"]) == ("text/event-stream", "no-store")
        assert (caller.headers["x-request-id"], caller.is_at_end) == ("mine", True)
        *pieces, last, done = caller.events
        assert pieces == [{"text": "Hal", "index": 0}, {"text": "lo", "index": 0}]
        assert last.pop("latency_ms") >= 0
        assert (last, done) == (LAST, "[DONE]")
        harness.check_completed(200)

    @in_loop
    async def test_a_piece_leaves_when_it_is_there_and_the_first_brings_the_head(self) -> None:
        first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(first, PIECES[0], second, PIECES[1], third, PIECES[2]))
        caller = Caller(harness, stream=True)
        asking = task(caller.send_request())
        for event, events in ((first, 1), (second, 2)):
            seen = len(caller.messages)
            await asyncio.sleep(0.01)
            assert len(caller.messages) == seen, "nothing leaves before it is there"
            event.set()
            await soon(lambda seen=seen: len(caller.messages) > seen)  # type: ignore[misc]
            assert len(caller.events) == events
            assert harness.version.references
        third.set()
        await asking
        harness.check_completed(200)

    @in_loop
    async def test_what_is_there_together_leaves_together(self) -> None:
        pause = asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(*PIECES[:2], pause, *PIECES[:2], *PIECES))
        caller = Caller(harness, stream=True)
        asking = task(caller.send_request())
        await soon(lambda: len(caller.messages) == 2)
        assert len(caller.events) == 2
        pause.set()
        await asking
        # The head, what was there at first, what came then, the end.
        assert (len(caller.messages), len(caller.events)) == (4, 8)
        harness.check_completed(200)

    @in_loop
    @pytest.mark.parametrize("where", ["refused", "before the first piece"])
    async def test_an_error_before_the_first_piece_is_an_ordinary_answer(self, where: str) -> None:
        error = Overloaded("full", retry_after_s=3)
        harness = EndpointHarness(ScriptedGeneration(error), refusal=error if where == "refused" else None)
        caller = Caller(harness, stream=True)
        await caller.send_request()
        assert (caller.status, caller.headers["retry-after"]) == (503, "3")
        assert caller.headers["content-type"] == "application/json"
        harness.check_completed(503)

    @in_loop
    @pytest.mark.parametrize(
        ("error", "code", "message"),
        [
            (ModelFailed("its thread ended"), "model_failed", "its thread ended"),
            (DeadlineExceeded("late"), "deadline_exceeded", "late"),
            (Draining("going"), "draining", "going"),
            (RuntimeError("a secret"), "internal", "an error of ours; the log has it under this request id"),
        ],
    )
    async def test_an_error_behind_the_first_piece_is_the_last_event(
        self, error: Exception, code: str, message: str
    ) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], error))
        caller = Caller(harness, stream=True)
        await caller.send_request()
        assert caller.status == 200
        assert await told(caller) == {"code": code, "message": message, "request_id": "mine"}
        harness.check_completed(200)

    @in_loop
    async def test_a_text_of_nothing(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(Piece(0, "", "length")))
        caller = Caller(harness, stream=True)
        await caller.send_request()
        last, done = caller.events
        assert (last["text"], last["finish_reason"], done) == ("", "length", "[DONE]")


class TestLeaving:
    @in_loop
    @pytest.mark.parametrize("pieces", [0, 1, 2])
    @pytest.mark.parametrize("seconds", [0.0, 0.1], ids=["at once", "later"])
    async def test_a_caller_that_leaves_ends_it(self, pieces: int, seconds: float) -> None:
        harness = EndpointHarness(ScriptedGeneration(*PIECES[:pieces], asyncio.Event()))
        caller = Caller(harness, stream=True)
        asking = task(caller.send_request())
        await asyncio.sleep(seconds)
        caller.disconnect()
        await asking
        assert not caller.is_at_end
        harness.check_completed(499)

    @in_loop
    async def test_one_that_leaves_while_it_is_behind_ends_it(self) -> None:
        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = full_after(3)
        asking = task(caller.send_request())
        await soon(lambda: len(caller.messages) == 3)
        caller.disconnect()
        await asking
        harness.check_completed(499)

    @in_loop
    async def test_one_to_whom_nothing_can_be_sent_ends_it(self) -> None:
        async def broken() -> None:
            if caller.messages:
                raise BrokenPipeError

        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = broken
        await caller.send_request()
        harness.check_completed(499)


class TestDrain:
    """At the end of its time the server cancels what is under way."""

    @in_loop
    async def test_before_the_first_piece_it_is_an_ordinary_answer(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(asyncio.Event()))
        caller = Caller(harness, stream=True)
        await cancelled(caller, 0)
        assert caller.status == 503
        harness.check_completed(503)

    @in_loop
    async def test_behind_it_the_last_event_says_so(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], asyncio.Event()))
        caller = Caller(harness, stream=True)
        await cancelled(caller, 2)
        assert (caller.status, (await told(caller))["code"]) == (200, "draining")
        harness.check_completed(200)

    @in_loop
    async def test_a_reader_that_is_behind_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", 0.05)
        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = full_after(3)
        await cancelled(caller, 3)
        assert not caller.is_at_end
        harness.check_completed(200)


def full_after(messages: int) -> Callable[[], Awaitable[None]]:
    """A transport that takes so many messages, and then none."""
    taken = 0

    async def send() -> None:
        nonlocal taken
        if taken >= messages:
            await asyncio.Event().wait()
        taken += 1

    return send


async def cancelled(caller: Caller, messages: int) -> None:
    """Lets it ask, and cancels it when so many messages have left."""
    asking = task(caller.send_request())
    await soon(lambda: len(caller.messages) == messages)
    await asyncio.sleep(0.01)
    asking.cancel()
    await asking
