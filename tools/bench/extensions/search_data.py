"""Make vectors like embeddings, and measure calls in alternating rounds of a bounded time."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from frameworks.core.vector_search import Vectors

ROWS, DIMENSIONS, TOP_K, CALLERS = int(os.environ.get("BENCH_VECTORS") or 1_000_000), 384, 10, 16
BATCHES = 3
"""Searches of each of the concurrent callers in one round."""
CLUSTERED, NOISY = 1.0, 1.6
"""Standard deviations of the noise around the subtopics; that of the topics is 1."""
_CHUNK = 10_000
_ROWS_OF_TOPIC, _ROWS_OF_SUBTOPIC, _SPREAD, _DECAY = 1000, 50, 0.7, -0.35
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Corpus:
    """Vectors like embeddings: topics, subtopics around them, and noise of this standard deviation around those.

    Variances fall from the first dimension to the last. A topic has 1,000 of the `rows`, and a subtopic 50.
    """

    rows: int = ROWS
    noise: float = CLUSTERED

    def vectors(self) -> Iterator[Vectors]:
        """Yield the rows, float32 [up to 10,000, DIMENSIONS]."""
        return self._drawn(self.rows, 1)

    def queries(self, count: int) -> Vectors:
        """Return vectors like the rows, which are not among them, float32 [count, DIMENSIONS]."""
        return np.concatenate(list(self._drawn(count, 2)))

    def _drawn(self, count: int, seed: int) -> Iterator[Vectors]:
        generator = np.random.default_rng(0)
        topics = generator.standard_normal((max(1, self.rows // _ROWS_OF_TOPIC), DIMENSIONS), dtype=np.float32)
        subtopics = topics[generator.integers(0, len(topics), max(1, self.rows // _ROWS_OF_SUBTOPIC))]
        subtopics += np.float32(_SPREAD) * generator.standard_normal(subtopics.shape, dtype=np.float32)
        scales = ((1 + np.arange(DIMENSIONS)) ** _DECAY).astype(np.float32)
        generator = np.random.default_rng(seed)
        for start in range(0, count, _CHUNK):
            vectors = generator.standard_normal((min(_CHUNK, count - start), DIMENSIONS), dtype=np.float32)
            vectors *= np.float32(self.noise)
            vectors += subtopics[generator.integers(0, len(subtopics), len(vectors))]
            vectors *= scales
            yield vectors


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
