"""Scores in the order of labels, also of equal ones."""

from math import isnan

import numpy as np

from frameworks.engine.text_answers import ranked
from frameworks.text.label_order import in_label_order
from frameworks.types import ClassifyAnswer

LABELS = ("crane", "maillot", "crane", "maillot", "star")
SCORES = np.array([[0.1, 0.2, 0.4, 0.05, 0.25], [0.3, 0.1, 0.2, 0.4, 0.0]])


def test_equal_labels_keep_their_scores() -> None:
    answer = ranked(SCORES, LABELS, None)
    assert in_label_order(answer, LABELS) == SCORES.tolist()
    assert [label for label, _ in answer.predictions[0]] == ["crane", "star", "maillot", "crane", "maillot"]


def test_cut_answer_has_nan_elsewhere() -> None:
    (row, _) = in_label_order(ranked(SCORES, LABELS, 2), LABELS)
    assert (row[2], row[4]) == (0.4, 0.25)
    assert all(isnan(row[i]) for i in (0, 1, 3))


def test_different_labels_need_no_classes() -> None:
    answer = ranked(SCORES, ("a", "b", "c", "d", "e"), None, tokens=3)
    assert (answer.classes, answer.tokens) == (None, 3)
    assert in_label_order(answer, ("a", "b", "c", "d", "e")) == SCORES.tolist()


def test_equal_labels_without_classes_fall() -> None:
    answer = ClassifyAnswer([[("crane", 0.6), ("star", 0.3), ("crane", 0.1)]])
    assert in_label_order(answer, ("crane", "crane", "star")) == [[0.6, 0.1, 0.3]]
