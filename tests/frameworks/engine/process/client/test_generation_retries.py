"""Generated text after a crash: it is withheld while another request may interrupt it."""

import pytest

from frameworks.engine.process.client.generations import GenerationCall
from frameworks.engine.process.wire.messages import Generate, TextDeltas
from frameworks.generation.types import GenerateRequest, TextDelta, Usage
from frameworks.scheduling.steps.token_feed import MAX_UNREAD_TOKENS
from tests.frameworks.engine.process.fake_link import FakeLink, Harness
from tests.frameworks.engine.process.test_same_answers import Times, run_of
from tests.support.loops import in_loop, settle, soon, task


def text(number: int, *pieces: str, is_over: bool = False) -> TextDeltas:
    return TextDeltas(number, [TextDelta(0, each) for each in pieces], Usage(1, len(pieces)), begun=1, is_over=is_over)


def numbers(link: FakeLink) -> list[int]:
    return [each.id for each in link.sent_of(Generate)]


async def start(harness: Harness, *prompts: str) -> list[GenerationCall]:
    """Return generations that have begun, and have no text yet."""
    await harness.engine.open()
    waiting = [
        task(harness.engine.generate(run_of(), GenerateRequest((each,)), Times(), None, True)) for each in prompts
    ]
    await soon(lambda: len(numbers(harness.link)) == len(prompts))
    harness.link.receive(*(text(each) for each in numbers(harness.link)))
    return [await each for each in waiting]


@pytest.mark.parametrize("has_reader", [True, False])
@in_loop
async def test_text_beside_other_suspect_is_withheld(has_reader: bool) -> None:
    harness = Harness()
    first, second = await start(harness, "a", "b")
    reader = task(anext(second)) if has_reader else None
    harness.link.lose()
    link = await harness.restarted()
    assert numbers(link) == [1, 2]
    # The other one may end the process: no text is read that could not be computed again.
    long = ["x"] * (2 * MAX_UNREAD_TOKENS)
    link.receive(text(1, "one", is_over=True), text(2, *long))
    await settle()
    assert [each.text async for each in first] == ["one"]
    assert (second.ready(), second.is_over) == ([], False)
    link.lose()
    link = await harness.restarted(3)
    link.receive(text(2, "two"))
    piece = await (reader or anext(second))
    assert piece.text == "two"
    link.receive(text(2, "end", is_over=True))
    assert [each.text for each in second.ready()] == ["end"]


@in_loop
async def test_only_suspect_delivers_text_at_once() -> None:
    harness = Harness()
    [only] = await start(harness, "a")
    harness.link.lose()
    link = await harness.restarted()
    link.receive(text(1, "one"))
    assert [each.text for each in only.ready()] == ["one"]
    only.close()
