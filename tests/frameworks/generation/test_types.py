"""Responses of text generation."""

import weakref

from frameworks.generation.types import Choice, GenerateAnswer, TokenText, Usage


class Text(str):
    """The text of a token."""


def test_dropped_tokens_are_freed() -> None:
    tokens = [TokenText(number, Text("x"), -1.0) for number in range(1000)]
    first = weakref.ref(tokens[0].text)
    answer = GenerateAnswer([Choice("x", "stop", tokens), Choice("", "stop")], Usage(1, 1000))
    del tokens
    assert first() is not None
    answer.drop_tokens()
    assert first() is None
    assert [choice.tokens for choice in answer.choices] == [[], []]
    assert answer.choices[0].text == "x"
