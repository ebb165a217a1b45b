"""Server-sent events, cut at any place."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.load_test.events import MAX_EVENT_BYTES, BadStream, EventReader, StreamedGeneration, generated_tokens

STREAM = (
    b': comment\r\ndata: {"text": "a"}\r\n\r\nevent: x\ndata:{"text":\ndata: "\xe2\x98\x83"}\n\nid: 1\r\r'
    b"data\n\ndata: [DONE]\r\n\r\n"
)
EVENTS = [b'{"text": "a"}', b'{"text":\n"\xe2\x98\x83"}', b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_equal_for_any_chunks(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    found = [event for start, end in pairwise(places) for event in reader.feed(STREAM[start:end])]
    assert found == EVENTS


@pytest.mark.parametrize("part", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"], ids=["line", "field"])
def test_endless_event_is_refused(part: bytes) -> None:
    reader = EventReader()
    parts = range(MAX_EVENT_BYTES // len(part) + 2)
    with pytest.raises(BadStream):
        assert [list(reader.feed(part)) for _ in parts]


def test_first_token_is_first_event_with_text() -> None:
    generation = StreamedGeneration()
    generation.feed(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', 1.0)
    assert generation.pieces == 0
    generation.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', 2.0)
    generation.feed(b'data: {"choices":[{"text":"b"}],"usage":null}\n\n', 3.0)
    generation.feed(b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\ndata: [DONE]\n\n', 4.0)
    assert (generation.first_s, generation.last_s, generation.pieces) == (2.0, 3.0, 2)
    assert (generation.tokens, generation.is_done, generation.error) == (7, True, None)


@pytest.mark.parametrize("stream", [b"data: {\n\n", b"data: 5\n\n", b"data: [1]\n\n"])
def test_event_of_other_form_is_refused(stream: bytes) -> None:
    with pytest.raises(BadStream):
        StreamedGeneration().feed(stream, 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        {},
        {"usage": 5},
        {"usage": {"completion_tokens": "5"}},
        {"tokens_generated": True},
        {"tokens_generated": -1},
        {"tokens_generated": 10**400},
    ],
)
def test_invalid_token_count_is_ignored(answer: object) -> None:
    assert generated_tokens(answer) is None
