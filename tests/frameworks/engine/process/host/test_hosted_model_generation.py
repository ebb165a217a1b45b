"""The messages of a generation in an engine process: its start, its texts, its limits, its end."""

import pytest

from frameworks.core.errors import DeadlineExceeded, InvalidInput
from frameworks.engine.process.host import hosted_calls
from frameworks.engine.process.wire.messages import (
    Begun,
    Cancel,
    Counted,
    Counts,
    Failed,
    Generate,
    Proceed,
    TextDeltas,
)
from frameworks.engine.process.wire.serialization import error_from_plain, request_to_plain
from frameworks.generation.types import GenerateRequest, Stopping
from tests.support.engine_hosts import DEFAULT_TENANT, FakeSource, HostLink, hosted
from tests.support.loops import in_loop, settle, soon
from tests.support.step_models import EchoModel, StepGate

ECHO = GenerateRequest(("hello",), stopping=Stopping(max_tokens=5))


def generate(
    link: HostLink,
    request: GenerateRequest = ECHO,
    *,
    number: int = 1,
    left_s: float | None = None,
    in_pieces: bool = True,
    is_metered: bool = False,
) -> None:
    plain = request_to_plain(request)
    link.send(Generate(number, plain, 5, DEFAULT_TENANT, 0.0, left_s, in_pieces, is_metered))


async def to_end(link: HostLink) -> list[TextDeltas]:
    """Return the messages of a generation up to its last one."""
    await soon(lambda: any(message.is_over for message in link.of(TextDeltas)))
    return link.of(TextDeltas)


@in_loop
async def test_accepted_generation_is_reported_before_tokens() -> None:
    gate = StepGate(0)
    async with hosted(FakeSource(EchoModel(gate))) as link:
        await link.load()
        generate(link)
        first = await link.next(TextDeltas)
        assert (first.pieces, first.usage.prompt_tokens, first.begun, first.is_over) == ([], 5, 0, False)
        gate.open()
        messages = await to_end(link)
        assert "".join(piece.text for each in messages for piece in each.pieces) == "hello"
        assert sum(each.begun for each in messages) == 1
        assert sum(each.first_s is not None for each in messages) == 1
        assert sum(len(each.token_s) for each in messages) == 4
        assert messages[-1].usage.tokens_generated == 5
        assert not link.of(Begun)


@in_loop
async def test_counts_arrive_before_last_pieces() -> None:
    async with hosted(FakeSource(EchoModel())) as link:
        await link.load()
        generate(link)
        await to_end(link)
        last = link.messages.index(link.of(TextDeltas)[-1])
        before = [each for each in link.messages[:last] if isinstance(each, Counts)]
        assert sum(each.steps.tokens for each in before if each.steps is not None) == 5
        assert [each.stats for each in before if each.stats is not None][-1].running == 0


@in_loop
async def test_metered_generation_waits_for_proceed() -> None:
    model = EchoModel()
    async with hosted(FakeSource(model)) as link:
        await link.load()
        generate(link, is_metered=True)
        assert await link.next(Counted) == Counted(1, 5)
        await settle()
        assert not model.given
        link.send(Proceed(1))
        await to_end(link)


@in_loop
async def test_cancelled_generation_ends_sequences() -> None:
    gate = StepGate(1)
    model = EchoModel(gate)
    async with hosted(FakeSource(model)) as link:
        await link.load()
        generate(link)
        await soon(lambda: any(each.pieces for each in link.of(TextDeltas)))
        link.send(Cancel(1))
        await settle()
        gate.open()
        await soon(lambda: bool(model.aborted) and not model.has_work)
        assert not any(each.is_over for each in link.of(TextDeltas))


@in_loop
async def test_error_follows_pieces_before_it() -> None:
    async with hosted(FakeSource(EchoModel())) as link:
        await link.load()
        generate(link, GenerateRequest(((97, 98, 1),), stopping=Stopping(max_tokens=5)), in_pieces=False)
        await soon(lambda: bool(link.of(Failed)))
        [failed] = link.of(Failed)
        assert isinstance(error_from_plain(failed.error), InvalidInput)
        assert "".join(piece.text for each in link.of(TextDeltas) for piece in each.pieces) == "ab"
        assert link.messages.index(failed) > link.messages.index(link.of(TextDeltas)[-1])


@in_loop
async def test_passed_deadline_fails_generation() -> None:
    async with hosted(FakeSource(EchoModel())) as link:
        await link.load()
        generate(link, left_s=-1.0)
        assert isinstance(error_from_plain((await link.next(Failed)).error), DeadlineExceeded)


@in_loop
async def test_whole_text_needs_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_calls, "PIECES_S", 1e9)
    async with hosted(FakeSource(EchoModel())) as link:
        await link.load()
        # A stop string makes the model report each token at once.
        request = GenerateRequest(("a" * 500,), stopping=Stopping(max_tokens=400, strings=("b",)))
        generate(link, request, in_pieces=False)
        messages = await to_end(link)
        assert "".join(piece.text for each in messages for piece in each.pieces) == "a" * 400
        # Its acceptance, its begin and its end.
        assert len(messages) <= 3


@in_loop
async def test_generation_waits_for_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(FakeSource(EchoModel())) as link:
        await link.load()
        monkeypatch.setattr(hosted_calls, "MAX_BUFFERED_BYTES", -1)
        generate(link)
        await soon(lambda: any(each.pieces for each in link.of(TextDeltas)))
        await settle()
        assert not any(each.is_over for each in link.of(TextDeltas))
        monkeypatch.undo()
        await to_end(link)
