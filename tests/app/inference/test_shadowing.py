"""The comparison of two versions' answers."""

import numpy as np
import pytest

from app.inference.shadowing import is_same
from frameworks.text.tokens import DetokenizeAnswer, TokenAnswer, TokenizeAnswer
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, ScoreAnswer

ROWS = np.array([[0.6, 0.8]], np.float32)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"y": ROWS}, {"y": ROWS * 1.0005}, True),
        ({"y": ROWS}, {"y": ROWS * 1.01}, False),
        ({"y": ROWS}, {"z": ROWS}, False),
        (EmbedAnswer(ROWS, 1), EmbedAnswer(ROWS * 1.0005, 2), True),
        (EmbedAnswer(ROWS, 1), EmbedAnswer(ROWS * 1.01, 1), False),
        (ClassifyAnswer([[("a", 0.5), ("b", 0.5)]]), ClassifyAnswer([[("b", 0.5), ("a", 0.5)]]), True),
        (ClassifyAnswer([[("a", 0.5)]]), ClassifyAnswer([[("a", 0.6)]]), False),
        (ScoreAnswer([0.5, -0.5], 1), ScoreAnswer([0.5001, -0.5], 2), True),
        (ScoreAnswer([0.5], 1), ScoreAnswer([0.6], 1), False),
        (ScoreAnswer([0.5], 1), ScoreAnswer([0.5, 0.5], 1), False),
        (TokenizeAnswer([1, 2], None, 7), TokenizeAnswer([1, 2], None, 7), True),
        (TokenizeAnswer([1, 2], None, 7), TokenizeAnswer([1, 3], None, 7), False),
        (DetokenizeAnswer("a"), DetokenizeAnswer("b"), False),
        (EmbedAnswer(ROWS, 1), ScoreAnswer([0.5], 1), False),
    ],
)
def test_shadow_outcome_compares_answers(one: Answer | TokenAnswer, other: Answer | TokenAnswer, same: bool) -> None:
    assert is_same(one, other) == same
