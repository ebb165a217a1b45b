"""OpenAI's own client parses whole and streamed responses, and errors before and after the first piece."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest

from app.protocols.openai.routes import ROUTES
from frameworks.core.errors import DeadlineExceeded, ModelFailed, Overloaded
from frameworks.generation.types import TextDelta
from tests.app.protocols.generating import EndpointHarness, ScriptedGeneration
from tests.support.loops import in_loop

PIECES = (TextDelta(0, "Hal"), TextDelta(0, "lo"), TextDelta(0, "!", "stop"))
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def client_of(harness: EndpointHarness) -> AsyncIterator[openai.AsyncOpenAI]:
    """Return OpenAI's client of an endpoint whose model is called `writer`."""

    transport = httpx2.ASGITransport(harness.app)
    async with openai.AsyncOpenAI(
        base_url="http://test/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(transport=transport),
    ) as client:
        yield client


@in_loop
async def test_completion_whole() -> None:
    harness = EndpointHarness(ScriptedGeneration(*PIECES), routes=ROUTES)
    async with client_of(harness) as client:
        answer = await client.completions.create(model="writer", prompt=["Once"], max_tokens=5)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hallo!", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    assert harness.generate_requests[0].stopping.max_tokens == 5
    harness.check_completed(200)


@in_loop
async def test_completion_streamed() -> None:
    harness = EndpointHarness(ScriptedGeneration(*PIECES), routes=ROUTES)
    async with client_of(harness) as client:
        stream = await client.completions.create(model="writer", prompt="Once", stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
    assert [choice.text for choice in choices] == ["Hal", "lo", "!"]
    # OpenAI's servers also send null before the last piece, against the type of their client.
    assert [choice.finish_reason for choice in choices] == [None, None, "stop"]
    harness.check_completed(200)


@in_loop
async def test_chat_whole() -> None:
    harness = EndpointHarness(ScriptedGeneration(*PIECES), routes=ROUTES)
    async with client_of(harness) as client:
        answer = await client.chat.completions.create(model="writer", messages=MESSAGES)
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", "Hallo!")
    harness.check_completed(200)


@in_loop
async def test_chat_stream_is_joined_by_client() -> None:
    harness = EndpointHarness(ScriptedGeneration(*PIECES), routes=ROUTES)
    options: Any = {"stream_options": {"include_usage": True}}
    async with (
        client_of(harness) as client,
        client.chat.completions.stream(model="writer", messages=MESSAGES, **options) as stream,
    ):
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(deltas) == "Hallo!"
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("Hallo!", "stop")
    assert final.usage is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (3, 2)
    harness.check_completed(200)


@pytest.mark.parametrize("path", ["completions", "chat"])
def test_continuous_usage_is_in_every_chunk(path: str) -> None:
    @in_loop
    async def test() -> None:
        pieces = (TextDelta(0, "Hal", num_generated=1), TextDelta(0, "lo", "stop", num_generated=2))
        harness = EndpointHarness(ScriptedGeneration(*pieces), routes=ROUTES)
        options: Any = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
        async with client_of(harness) as client:
            if path == "chat":
                stream: Any = await client.chat.completions.create(model="writer", messages=MESSAGES, **options)
            else:
                stream = await client.completions.create(model="writer", prompt="Once", **options)
            usages = [chunk.usage async for chunk in stream]
        counts = [(each.prompt_tokens, each.completion_tokens, each.total_tokens) for each in usages]
        # A chat begins with its role and ends with its finish reason.
        generated = [0, 1, 2, 2, 2] if path == "chat" else [1, 2, 2]
        assert counts == [(3, each, 3 + each) for each in generated]

    test()


@pytest.mark.parametrize(
    ("refusal", "kind", "status"),
    [
        (Overloaded("full", 7.0), openai.InternalServerError, 503),
        (DeadlineExceeded("late"), openai.InternalServerError, 504),
    ],
)
def test_error_before_first_piece_has_status(refusal: Exception, kind: Any, status: int) -> None:
    @in_loop
    async def test() -> None:
        harness = EndpointHarness(ScriptedGeneration(), refusal, ROUTES)
        async with client_of(harness) as client:
            with pytest.raises(kind) as refused:
                await client.chat.completions.create(model="writer", messages=MESSAGES, stream=True)
        assert refused.value.status_code == status
        assert refused.value.response.headers.get("retry-after") == ("7" if status == 503 else None)
        harness.check_completed(status)

    test()


@pytest.mark.parametrize("path", ["completions", "chat"])
def test_error_after_first_piece_ends_stream(path: str) -> None:
    @in_loop
    async def test() -> None:
        harness = EndpointHarness(ScriptedGeneration(PIECES[0], ModelFailed("its thread ended")), routes=ROUTES)
        texts = []

        async def read(stream: Any) -> None:
            async for chunk in stream:
                choice = chunk.choices[0]
                texts.append((choice.delta.content or "") if path == "chat" else choice.text)

        async with client_of(harness) as client:
            if path == "chat":
                stream: Any = await client.chat.completions.create(model="writer", messages=MESSAGES, stream=True)
            else:
                stream = await client.completions.create(model="writer", prompt="Once", stream=True)
            with pytest.raises(openai.APIError, match="its thread ended") as failed:
                await read(stream)
        assert "".join(texts) == "Hal"
        assert failed.value.code == "model_failed"

    test()
