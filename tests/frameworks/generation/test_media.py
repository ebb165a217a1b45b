"""The images of a prompt: their tokens, their positions, and where a part of the prompt ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.generation.media import ImageGroup, PromptMedia


def group(key: int, *spans: tuple[int, int]) -> ImageGroup:
    return ImageGroup(key, {}, spans)


@st.composite
def prompts(draw: st.DrawFn) -> PromptMedia:
    """Prompts with images of one or several spans, which may be adjacent."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=6))
    spans, end = [], 0
    for text, image in lengths:
        spans.append((end + text, end + text + image))
        end += text + image
    groups: list[ImageGroup] = []
    while spans:
        count = draw(st.integers(1, len(spans)))
        groups.append(group(-2 - len(groups), *spans[:count]))
        spans = spans[count:]
    blocks = tuple(each for own in groups for each in own.spans) if draw(st.booleans()) else ()
    return PromptMedia(end + draw(st.integers(1, 5)), tuple(groups), {}, blocks=blocks)


@given(prompts(), st.integers(1, 20))
def test_parts_cover_prompt_and_divide_no_block(media: PromptMedia, budget: int) -> None:
    start = 0
    while start < media.num_tokens:
        end = media.end_of_part(start, min(start + budget, media.num_tokens))
        assert start < end <= media.num_tokens
        assert not any(first < end < last for first, last in media.blocks)
        start = end


@given(prompts(), st.sets(st.integers(-8, -2)), st.data())
def test_first_missing_token_is_found(media: PromptMedia, ready: set[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, media.num_tokens - 1))
    end = data.draw(st.integers(start + 1, media.num_tokens))
    owners = {token: group for group in media.groups for first, last in group.spans for token in range(first, last)}
    missing = [token for token in range(start, end) if token in owners and owners[token].key not in ready]
    found = media.first_missing(start, end, lambda group: group.key in ready)
    assert found == ((missing[0], owners[missing[0]]) if missing else None)


def test_whole_prompt_is_one_part() -> None:
    media = PromptMedia(9, (group(-2, (2, 5)),), {}, is_whole=True)
    assert media.end_of_part(0, 3) == 9
    assert media.end_of_part(9, 12) == 12


def test_content_ids_name_images() -> None:
    media = PromptMedia(6, (group(-7, (1, 2), (3, 4)), group(-8, (4, 5))), {})
    assert media.content_ids([1, 9, 2, 9, 9, 3, 4]) == [1, -7, 2, -7, -8, 3, 4]


@pytest.mark.parametrize("start", range(9))
def test_positions_continue_after_prompt(start: int) -> None:
    positions = np.array([[0, 1, 1, 1, 3], [0, 1, 1, 2, 3], [0, 1, 2, 1, 3]])
    media = PromptMedia(5, (group(-2, (1, 4)),), {}, positions)
    assert media.offset == -1
    whole = np.concatenate((positions, np.tile(np.arange(4, 12), (3, 1))), 1)
    for count in range(1, 4):
        assert np.array_equal(media.positions_of(start, count), whole[:, start : start + count])
