"""Tokens of reasoning are counted, however the marks are cut into tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.generation.text.marked_stream import ReasoningCount


def count(texts: list[str]) -> int:
    counted = ReasoningCount()
    for text in texts:
        counted.push(text)
    return counted.num_tokens


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], 0),
        (["Hello", "<think>", "no"], 0),
        (["<think>"], 1),
        (["<think>", "Hm", ".", "</think>", "Hello"], 4),
        (["\n", "<think>", "Hm"], 3),
        (["<", "think", ">", "Hm", "</", "think", ">", "\n", "Hello"], 7),
        (["<think>Hm</think>Hello", "!"], 1),
        (["<thin"], 0),
        (["<thin", "g"], 0),
        (["<think>", "</think>", "<think>", "Hm"], 2),
    ],
)
def test_tokens_up_to_end_mark_counted(texts: list[str], expected: int) -> None:
    assert count(texts) == expected


@given(thinking=st.text("ab</think> ", max_size=30), content=st.text(max_size=10))
def test_characters_of_reasoning_are_counted(thinking: str, content: str) -> None:
    thinking = thinking.replace("</think>", "")
    assert count([*"<think>", *thinking, *"</think>", *content]) == len(f"<think>{thinking}</think>")
