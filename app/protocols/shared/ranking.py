"""Rank texts by a query: what the routes of all protocols for pairs of texts share."""

from collections.abc import Sequence

from frameworks.core.errors import InvalidInput
from frameworks.engine.text_answers import PAIR_FIELD
from frameworks.types import ModelSpec


def check_scores_pairs(spec: ModelSpec) -> None:
    """Raise InvalidInput for a classification model that has more than the one label of a cross-encoder."""
    num_labels = len(spec.text.labels) if spec.text else 0
    if spec.task == "classify" and num_labels != 1:
        raise InvalidInput("model", f"expected a cross-encoder, which has one label, got a model with {num_labels}")


def best_first(scores: Sequence[float], count: int | None = None) -> list[int]:
    """Return the indices of the `count` highest scores, best first; None or 0: of all.

    Equal scores keep their order.
    """
    return sorted(range(len(scores)), key=lambda index: -scores[index])[: count or None]


def rename_pair(field: str, query: str, documents: str) -> str:
    """Return the field of a text as the body names it. `query`: that of the first text of each pair."""
    pair = PAIR_FIELD.fullmatch(field)
    if pair is None:
        return field
    return query if pair["side"] == "0" else f"{documents}[{pair['pair']}]"
