"""Rounds in turn, and what is made of them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Figure = TypeVar("Figure")


def in_turn(ways: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, list[Figure]]:
    """What every way measured in every round. Ways take turns, so that a slow minute of the machine meets them all."""
    figures: dict[str, list[Figure]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            figures[name].append(measure())
    return figures


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' own ratios: what one round shares, its minute of the machine, falls out."""
    return median(our / other for our, other in zip(ours, others, strict=True))
