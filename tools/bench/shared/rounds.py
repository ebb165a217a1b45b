"""Measure in alternating rounds."""

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Figure = TypeVar("Figure")


def num_rounds(usual: int) -> int:
    """Return the value of BENCH_ROUNDS, for a shorter run, or the usual number."""
    return int(os.environ.get("BENCH_ROUNDS") or usual)


def in_turn(ways: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, list[Figure]]:
    """Return the figures of each variant by round. Variants alternate, so a slow minute of the machine affects all."""
    figures: dict[str, list[Figure]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            figures[name].append(measure())
    return figures


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within a round, so that the speed of the machine cancels out."""
    return median(our / other for our, other in zip(ours, others, strict=True))
