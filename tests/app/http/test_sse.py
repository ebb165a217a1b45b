"""Generated text is sent whole or in pieces; cancelled, failed and late requests free their resources."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.http import sse
from frameworks.core.errors import DeadlineExceeded, Draining, ModelFailed, Overloaded
from frameworks.generation.types import GenerateRequest, TextDelta
from tests.app.protocols.generating import Caller, Endless, EndpointHarness, ScriptedGeneration
from tests.support.loops import in_loop, settle, soon, task

PIECES = (TextDelta(0, "Hal"), TextDelta(0, "lo"), TextDelta(0, "!", "stop"))
LAST = {"text": "!", "index": 0, "finish_reason": "stop", "tokens_generated": 2, "prompt_tokens": 3}


async def final_error(caller: Caller) -> Any:
    """Return the error of the last event."""
    assert caller.is_at_end
    *before, last = caller.events
    assert "[DONE]" not in before
    assert last["error"]["request_id"] == "mine"
    return last["error"]


class TestWhole:
    @in_loop
    async def test_whole_text_is_an_ordinary_response(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(*PIECES))
        caller = Caller(harness, max_tokens=5)
        await caller.send_request()
        assert (caller.status, caller.headers["content-type"]) == (200, "application/json")
        assert b'"text":"Hallo!"' in caller.bodies[0]
        assert isinstance(harness.generate_requests[0], GenerateRequest)
        harness.check_completed(200)

    @in_loop
    async def test_error_of_whole_text_has_its_status(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], DeadlineExceeded("too late")))
        caller = Caller(harness)
        await caller.send_request()
        assert caller.status == 504
        harness.check_completed(504)

    @in_loop
    async def test_disconnect_cancels_text(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(asyncio.Event()))
        caller = Caller(harness)
        pending = task(caller.send_request())
        await soon(lambda: bool(harness.version.references))
        caller.disconnect()
        await pending
        assert caller.messages == []
        harness.check_completed(499)


class TestStream:
    @in_loop
    async def test_every_piece_is_one_event(self) -> None:
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
    async def test_piece_is_sent_at_once_after_head(self) -> None:
        first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(first, PIECES[0], second, PIECES[1], third, PIECES[2]))
        caller = Caller(harness, stream=True)
        pending = task(caller.send_request())
        for event, events in ((first, 1), (second, 2)):
            seen = len(caller.messages)
            await asyncio.sleep(0.01)
            assert len(caller.messages) == seen, "nothing is sent before a piece is generated"
            event.set()
            await soon(lambda seen=seen: len(caller.messages) > seen)  # type: ignore[misc]
            assert len(caller.events) == events
            assert harness.version.references
        third.set()
        await pending
        harness.check_completed(200)

    @in_loop
    @pytest.mark.parametrize("last", [PIECES[2], DeadlineExceeded("late")], ids=["text", "error"])
    async def test_silent_stream_sends_comments(
        self, last: TextDelta | Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sse, "SILENCE_S", 0.01)
        first, second = asyncio.Event(), asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(first, *PIECES[:2], second, last))
        caller = Caller(harness, stream=True)
        pending = task(caller.send_request())
        await soon(lambda: caller.bodies[:2] == [b": keep-alive\n\n"] * 2)
        assert caller.status == 200
        first.set()
        await soon(lambda: len(caller.events) == 2)
        await soon(lambda: caller.bodies[-1] == b": keep-alive\n\n")
        second.set()
        await pending
        assert caller.events[:2] == [{"text": "Hal", "index": 0}, {"text": "lo", "index": 0}]
        if isinstance(last, Exception):
            assert (await final_error(caller))["code"] == "deadline_exceeded"
        harness.check_completed(200)

    @in_loop
    async def test_error_of_silent_stream_is_an_event(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "SILENCE_S", 0.01)
        pause = asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(pause, ModelFailed("its thread ended")))
        caller = Caller(harness, stream=True)
        pending = task(caller.send_request())
        await soon(lambda: len(caller.messages) > 2)
        pause.set()
        await pending
        assert caller.status == 200
        assert (await final_error(caller))["code"] == "model_failed"
        harness.check_completed(200)

    @in_loop
    async def test_buffered_pieces_are_sent_together(self) -> None:
        pause = asyncio.Event()
        harness = EndpointHarness(ScriptedGeneration(*PIECES[:2], pause, *PIECES[:2], *PIECES))
        caller = Caller(harness, stream=True)
        pending = task(caller.send_request())
        await soon(lambda: len(caller.messages) == 2)
        assert len(caller.events) == 2
        pause.set()
        await pending
        # The head, the first pieces, the later pieces, the end.
        assert (len(caller.messages), len(caller.events)) == (4, 8)
        harness.check_completed(200)

    @in_loop
    @pytest.mark.parametrize("where", ["refused", "before the first piece"])
    async def test_error_before_first_piece_has_its_status(self, where: str) -> None:
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
    async def test_error_after_first_piece_is_last_event(self, error: Exception, code: str, message: str) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], error))
        caller = Caller(harness, stream=True)
        await caller.send_request()
        assert caller.status == 200
        assert await final_error(caller) == {"code": code, "message": message, "request_id": "mine"}
        harness.check_completed(200)

    @in_loop
    async def test_empty_text_is_streamed(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(TextDelta(0, "", "length")))
        caller = Caller(harness, stream=True)
        await caller.send_request()
        last, done = caller.events
        assert (last["text"], last["finish_reason"], done) == ("", "length", "[DONE]")


class TestLeaving:
    @in_loop
    @pytest.mark.parametrize("pieces", [0, 1, 2])
    @pytest.mark.parametrize("seconds", [0.0, 0.1], ids=["at once", "later"])
    async def test_disconnect_cancels_text(self, pieces: int, seconds: float) -> None:
        harness = EndpointHarness(ScriptedGeneration(*PIECES[:pieces], asyncio.Event()))
        caller = Caller(harness, stream=True)
        pending = task(caller.send_request())
        await asyncio.sleep(seconds)
        caller.disconnect()
        await pending
        assert not caller.is_at_end
        harness.check_completed(499)

    @in_loop
    async def test_disconnect_of_slow_reader_cancels_text(self) -> None:
        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = full_after(3)
        pending = task(caller.send_request())
        await soon(lambda: len(caller.messages) == 3)
        caller.disconnect()
        await pending
        harness.check_completed(499)

    @in_loop
    async def test_failed_send_cancels_text(self) -> None:
        async def broken() -> None:
            if caller.messages:
                raise BrokenPipeError

        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = broken
        await caller.send_request()
        harness.check_completed(499)


class TestDrain:
    """The server cancels running requests after the drain timeout."""

    @in_loop
    async def test_drain_before_first_piece_has_its_status(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(asyncio.Event()))
        caller = Caller(harness, stream=True)
        await cancelled(caller, 0)
        assert caller.status == 503
        harness.check_completed(503)

    @in_loop
    async def test_drain_after_first_piece_is_last_event(self) -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], asyncio.Event()))
        caller = Caller(harness, stream=True)
        await cancelled(caller, 2)
        assert (caller.status, (await final_error(caller))["code"]) == (200, "draining")
        harness.check_completed(200)

    @in_loop
    async def test_drain_does_not_wait_for_slow_reader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "LAST_EVENT_S", 0.05)
        harness = EndpointHarness(Endless())
        caller = Caller(harness, stream=True)
        caller.on_send = full_after(3)
        await cancelled(caller, 3)
        assert not caller.is_at_end
        harness.check_completed(200)


def full_after(messages: int) -> Callable[[], Awaitable[None]]:
    """A transport that accepts this number of messages."""
    taken = 0

    async def send() -> None:
        nonlocal taken
        if taken >= messages:
            await asyncio.Event().wait()
        taken += 1

    return send


async def cancelled(caller: Caller, messages: int) -> None:
    """Run the request, and cancel it after this number of messages."""
    pending = task(caller.send_request())
    await soon(lambda: len(caller.messages) == messages)
    await settle()
    pending.cancel()
    await pending
