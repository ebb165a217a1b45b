"""Make vectors like embeddings, and measure calls in alternating rounds of a bounded time."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from frameworks.collections.contract import Vectors

ROWS, DIMENSIONS, TOP_K, CALLERS = int(os.environ.get("BENCH_VECTORS") or 1_000_000), 384, 10, 16
BATCHES = 3
"""Searches of each of the concurrent callers in one round."""
CLUSTERED, NOISY = 1.0, 1.6
"""Standard deviations of the noise around the subtopics; that of the topics is 1."""
_CHUNK = 10_000
_TOPICS, _SUBTOPICS, _SPREAD, _DECAY = 1000, 20_000, 0.7, -0.35
_LEAST_ROUNDS = 3


def embeddings(count: int, seed: int, noise: float = CLUSTERED) -> Iterator[Vectors]:
    """Yield vectors like embeddings, float32 [up to 10,000, DIMENSIONS], `count` in all.

    There are 1,000 topics, 20,000 subtopics around them and noise around those, with variances that fall from the first
    dimension to the last.
    """
    generator = np.random.default_rng(0)
    topics = generator.standard_normal((_TOPICS, DIMENSIONS), dtype=np.float32)
    subtopics = topics[generator.integers(0, _TOPICS, _SUBTOPICS)]
    subtopics += np.float32(_SPREAD) * generator.standard_normal(subtopics.shape, dtype=np.float32)
    scales = ((1 + np.arange(DIMENSIONS)) ** _DECAY).astype(np.float32)
    generator = np.random.default_rng(seed)
    for start in range(0, count, _CHUNK):
        vectors = generator.standard_normal((min(_CHUNK, count - start), DIMENSIONS), dtype=np.float32)
        vectors *= np.float32(noise)
        vectors += subtopics[generator.integers(0, _SUBTOPICS, len(vectors))]
        vectors *= scales
        yield vectors


def queries_of(count: int, noise: float = CLUSTERED) -> Vectors:
    """Return vectors like the rows, which are not among them."""
    return np.concatenate(list(embeddings(count, 2, noise)))


@dataclass(slots=True)
class Taken:
    """The seconds of each round: of the clock, and of the CPU, all threads."""

    wall_s: list[float]
    cpu_s: list[float]

    @property
    def usual_s(self) -> float:
        """Return the median seconds of the clock."""
        return median(self.wall_s)

    @property
    def usual_cpu_s(self) -> float:
        """Return the median seconds of the CPU."""
        return median(self.cpu_s)


def cpu_ratio(ones: Taken, others: Taken) -> float:
    """Return the median of the ratios of CPU times within a round: other programs change them least."""
    return median(one / other for one, other in zip(ones.cpu_s, others.cpu_s, strict=True))


async def in_rounds(
    ways: Mapping[str, Callable[[], Awaitable[object]]],
    limit_s: float,
    cpu_s: Callable[[], float] = time.process_time,
) -> dict[str, Taken]:
    """Run the variants in turn after a round of warm-up, at least 3 rounds and until the time is over."""
    taken = {name: Taken([], []) for name in ways}
    started_s = time.perf_counter()
    number = 0
    while number <= _LEAST_ROUNDS or time.perf_counter() - started_s < limit_s:
        for name, call in ways.items():
            before_s, before_cpu_s = time.perf_counter(), cpu_s()
            await call()
            if number:
                taken[name].cpu_s.append(cpu_s() - before_cpu_s)
                taken[name].wall_s.append(time.perf_counter() - before_s)
        number += 1
    return taken
