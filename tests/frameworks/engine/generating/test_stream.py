"""Test that a reader of many tokens leaves the event loop to others in between."""

import asyncio
from itertools import pairwise

import pytest

from app.observability.tallies import GenerationMetrics
from frameworks.core.timings import Timings
from frameworks.engine.generating.stream import GenerationStream
from frameworks.generation.sequences import GeneratedToken
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.text.text_stream import ChoiceText
from frameworks.scheduling.steps.token_feed import TokenFeed
from tests.support.loops import in_loop
from tests.support.step_models import ByteStream, ByteTokenizer


def stream_of(num_tokens: int, top_logprobs: int | None, looked_up: list[int]) -> GenerationStream:
    """Return the stream of a text whose tokens have all arrived."""

    class Texts(ByteTokenizer):
        def text_of(self, token_id: int) -> str:
            looked_up.append(token_id)
            return "a"

    feed = TokenFeed(lambda: None)
    feed.attach(7, lambda sequence_id: None)
    alternatives = ((97, -0.5),) * (top_logprobs or 0)
    for index in range(num_tokens):
        is_last = index == num_tokens - 1
        feed.push(GeneratedToken(7, 97, "length" if is_last else None, True, -0.5, alternatives), float(index))
    text = ChoiceText(0, ByteStream(), StopStrings(()), None if top_logprobs is None else Texts())
    metrics = GenerationMetrics()
    return GenerationStream(feed, 7, [text], [(1,)], Timings(), metrics, top_logprobs)


@in_loop
@pytest.mark.parametrize(("top_logprobs", "at_once"), [(None, 512), (0, 256), (20, 23)])
async def test_arrived_tokens_are_read_in_slices(top_logprobs: int | None, at_once: int) -> None:
    looked_up: list[int] = []
    between: list[int] = []
    stream = stream_of(1000, top_logprobs, looked_up)
    collecting = asyncio.create_task(stream.collect())
    while not collecting.done():
        between.append(stream.usage.tokens_generated)
        await asyncio.sleep(0)
    answer = await collecting
    assert (answer.choices[0].text, answer.usage.tokens_generated) == ("a" * 1000, 1000)
    assert len(answer.choices[0].tokens) == (0 if top_logprobs is None else 1000)
    between.append(1000)
    assert max(after - before for before, after in pairwise(between)) <= at_once


@in_loop
async def test_ready_pieces_are_those_of_one_slice() -> None:
    stream = stream_of(1000, 20, [])
    await anext(stream)
    assert len(stream.ready()) == 22
    assert [piece.index async for piece in stream] == [0] * (1000 - 23)


@in_loop
async def test_closed_stream_has_no_more_tokens() -> None:
    stream = stream_of(1000, 20, [])
    await anext(stream)
    stream.close()
    assert [piece async for piece in stream] == []


@in_loop
@pytest.mark.parametrize(("accepted", "used"), [(7, (7, 2)), (9, (8, 1))], ids=["within", "beyond"])
async def test_usage_has_accepted_tokens_of_text(accepted: int, used: tuple[int, int]) -> None:
    """Tokens that were right, but came after a stop string, are no part of the text."""
    stream = stream_of(8, None, [])
    stream._feed.proposed_tokens, stream._feed.accepted_tokens = 9, accepted
    usage = (await stream.collect()).usage
    assert (usage.accepted_tokens, usage.rejected_tokens) == used
