"""Replay mixed lengths with the cost law of a device and compare with the best known order.

Nothing is executed; the law was measured with MiniLM on one core. The reference order has all texts from the start,
sorted by length, in batches of eight.
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from frameworks.core.fairness import FairClock
from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.scheduling.batch.batcher import BatchLimits, next_batch
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry

Law = Callable[[int, float], float]
TEXTS = 2000
LIMITS = BatchLimits(max_rows=32)


def law_of(start_ms: float) -> Law:
    """Return the seconds of this many rows padded to a length."""

    def seconds(rows: int, length: float) -> float:
        tokens = rows * length
        return (start_ms + tokens * (0.225 + 2e-4 * length + 1.36e-5 * tokens)) / 1000

    return seconds


def mixed_lengths(seed: int) -> list[int]:
    """Return lengths of texts: most are short, some are long."""
    rng = random.Random(seed)
    return [min(180, max(4, round(rng.lognormvariate(3.2, 0.8)))) for _ in range(TEXTS)]


def sorted_eights_s(law: Law, lengths: list[int]) -> float:
    ordered = iter(sorted(lengths))
    return sum(law(len(batch), batch[-1]) for batch in iter(lambda: list(islice(ordered, 8)), []))


def replayed_s(law: Law, lengths: list[int], callers: int, rng: random.Random) -> float:
    """Return the device's seconds for all texts of closed-loop callers."""
    clock, cost, now_s = FairClock(), CostModel(), 0.0
    queue, share = FairQueue(1.0, clock), clock.share(DEFAULT_TENANT)

    def add(texts: Iterator[int]) -> int:
        num_added = 0
        for length in texts:
            queue.add(QueueEntry(None, share, 1, length, "texts"), 5, now_s)
            num_added += 1
        return num_added

    remaining = iter(lengths)
    num_run, num_added = 0, add(islice(remaining, callers))
    while (plan := next_batch(queue, cost, LIMITS)) is not None:
        for entry in plan.entries:
            queue.remove(entry)
        seconds = law(plan.rows, plan.length)
        cost.observe(plan.rows, plan.length, seconds * rng.uniform(0.95, 1.05))
        now_s += seconds
        num_run += plan.rows
        num_added += add(islice(remaining, plan.rows))
    assert num_run == num_added == len(lengths)
    return now_s


@pytest.mark.parametrize(
    ("start_ms", "callers", "most"),
    [(1.6, 32, 1.06), (1.6, 256, 1.02), (7.0, 32, 1.13), (7.0, 256, 1.03)],
    ids=[
        "cheap start, few callers",
        "cheap start, many callers",
        "costly start, few callers",
        "costly start, many callers",
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_mixed_texts_run_near_best_order(start_ms: float, callers: int, most: float, seed: int) -> None:
    law, lengths = law_of(start_ms), mixed_lengths(seed)
    assert replayed_s(law, lengths, callers, random.Random(seed)) <= most * sorted_eights_s(law, lengths)


@pytest.mark.parametrize("length", [1, 50])
def test_equal_rows_soon_fill_their_batches(length: int) -> None:
    """With a dominant start cost 32 callers need about a 32nd of the time."""

    def law(rows: int, length: float) -> float:
        return (5.0 + 1e-3 * rows * length) / 1000

    # The bound allows ten batches for learning and a few small trials.
    assert replayed_s(law, [length] * TEXTS, 32, random.Random(1)) < (10 + 1.1 * TEXTS / 32) * law(32, length)
