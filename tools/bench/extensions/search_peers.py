"""Measure an exact search with scikit-learn and with loops in Python.

`python -m tools.bench.extensions.search_peers scikit-learn|python` prints queries and CPU seconds as JSON, by variant.
It is a process of its own with one thread: the libraries choose their threads when they are loaded.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np

from tools.bench.extensions.search_data import CALLERS, DIMENSIONS, ROWS, TOP_K, Corpus
from tools.bench.shared.servers import ROOT

PYTHON_ROWS = 500
"""Of the loops in Python; their time is scaled to all rows."""
_ROUNDS = 3


class Measured(NamedTuple):
    """A search for so many queries at once, and its CPU seconds."""

    queries: int
    cpu_s: float


def peer_measured(peer: str) -> dict[str, Measured]:
    """Return the variants of a peer."""
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "tools.bench.extensions.search_peers", peer]
    variables = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=variables, cwd=ROOT)
    return {name: Measured(*each) for name, each in json.loads(found.stdout).items()}


def main() -> int:
    """Measure the peer that the command line names."""
    print(json.dumps(_scikit_learn() if sys.argv[1] == "scikit-learn" else _python()))
    return 0


def _scikit_learn() -> dict[str, Measured]:
    from sklearn.neighbors import NearestNeighbors

    vectors = np.empty((ROWS, DIMENSIONS), dtype=np.float32)
    done = 0
    for part in Corpus().vectors():
        vectors[done : done + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
        done += len(part)
    queries = Corpus().queries(CALLERS)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    measured = {}
    # Distances of vectors of length 1 have the order of cosines, and scikit-learn computes them faster.
    for metric, name in (("euclidean", "distances of vectors of length 1"), ("cosine", "cosines")):
        found = NearestNeighbors(n_neighbors=TOP_K, algorithm="brute", metric=metric).fit(vectors)
        for count in (1, CALLERS):
            taken_s = _usual_s(lambda found=found, count=count: found.kneighbors(queries[:count]))  # type: ignore[misc]
            measured[f"{name}, {count} queries" if count > 1 else f"{name}, one query"] = Measured(count, taken_s)
    return measured


def _python() -> dict[str, Measured]:
    rows, query = next(Corpus().vectors())[:PYTHON_ROWS].tolist(), Corpus().queries(1)[0].tolist()

    def loop() -> list[float]:
        return sorted((sum(a * b for a, b in zip(row, query, strict=True)) for row in rows), reverse=True)[:TOP_K]

    return {"loops, one query": Measured(1, _usual_s(loop) * ROWS / PYTHON_ROWS)}


def _usual_s(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(_ROUNDS):
        started_s = time.process_time()
        call()
        taken.append(time.process_time() - started_s)
    return median(taken)


if __name__ == "__main__":
    sys.exit(main())
