"""Write the scores of labels in the order of the model."""

from collections.abc import Sequence
from math import nan

Labelled = Sequence[tuple[str, float]]
"""Labels and scores by falling score."""


def in_label_order(row: Labelled, labels: Sequence[str]) -> list[float]:
    """Return the scores in the order of the model's labels. Equal labels get their scores by falling score.

    NaN: the label is not among them; a pipeline may cut its labels.
    """
    by_label = dict(row)
    if len(by_label) == len(row):
        return [by_label.get(label, nan) for label in labels]
    scores: dict[str, list[float]] = {}
    for label, score in reversed(row):
        scores.setdefault(label, []).append(score)
    return [scores[label].pop() if scores.get(label) else nan for label in labels]
