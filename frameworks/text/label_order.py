"""Return the scores of labels in the order of the model."""

from collections.abc import Sequence
from math import nan

from frameworks.types import ClassifyAnswer


def in_label_order(answer: ClassifyAnswer, labels: Sequence[str]) -> list[list[float]]:
    """Return the scores of each row in the order of the model's labels.

    Equal labels of an answer without `classes` get their scores by falling score. NaN: the label is not in the row; a
    pipeline may cut its labels.
    """
    if answer.classes is None:
        return [_by_label(row, labels) for row in answer.predictions]
    return [
        _by_class(row, classes, len(labels)) for row, classes in zip(answer.predictions, answer.classes, strict=True)
    ]


def _by_class(row: Sequence[tuple[str, float]], classes: Sequence[int], num_labels: int) -> list[float]:
    scores = [nan] * num_labels
    for index, (_, score) in zip(classes, row, strict=True):
        scores[index] = score
    return scores


def _by_label(row: Sequence[tuple[str, float]], labels: Sequence[str]) -> list[float]:
    by_label = dict(row)
    if len(by_label) == len(row):
        return [by_label.get(label, nan) for label in labels]
    scores: dict[str, list[float]] = {}
    for label, score in reversed(row):
        scores.setdefault(label, []).append(score)
    return [scores[label].pop() if scores.get(label) else nan for label in labels]
