"""Measure `roundhouse run --ray`: the rate of two workers of one core beside that of one worker.

The workers share two cores with the command and with Ray, as on any machine of two cores. The rate is that of the
middle half of the windows. The start of the cluster, of the workers and the merge are no part of it.
"""

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench.shared.corpus import WORDS
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import ROOT
from tools.bench.shared.table import Row

_TEXTS = 4_096
_WINDOW = 64
_ROUNDS = 3
_POLL_S = 0.02
_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class _Run:
    """`per_second`: texts, in the middle of the run. `took_s`: the whole command."""

    per_second: float
    took_s: float


def measure_ray_data(folder: Path, models: Path) -> list[Row]:
    """Compare the rates in alternating rounds. Each run has a cluster of its own."""
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(4, 130))) for _ in range(_TEXTS)]
    source = folder / "texts.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    model = models / "minilm-onnx"
    runs = in_turn({"one": lambda: _run(model, source, 1), "two": lambda: _run(model, source, 2)}, _ROUNDS)
    one, two = ([run.per_second for run in runs[name]] for name in ("one", "two"))
    took_s = [median(run.took_s for run in runs[name]) for name in ("one", "two")]
    return [
        Row(
            f"roundhouse run --ray: {_TEXTS} texts, MiniLM (ONNX), two workers of one core, steady part",
            f"{median(two):.0f} texts/s, {ratio(two, one):.2f} times",
            "≥ 1.8 times",
            f"one worker: {median(one):.0f} texts/s; whole commands {took_s[0]:.0f} s and {took_s[1]:.0f} s",
        )
    ]


def _run(model: Path, source: Path, workers: int) -> _Run:
    """Run the command, and note when each window ends. Raises RuntimeError where it fails or takes too long."""
    output = source.with_name(f"{workers}.parquet")
    words = [sys.executable, "-m", "app", "run", str(model), str(source), str(output), "--column", "text", "--restart"]
    words += ["--window", str(_WINDOW), "--workers", str(workers), "--worker-cpus", "1", "--ray"]
    folder = output.with_name(output.name + ".parts")
    ends_s: dict[str, float] = {}
    started_s = time.perf_counter()
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and time.perf_counter() - started_s < _LIMIT_S:
                for path in folder.glob("*/*.arrow"):
                    ends_s.setdefault(path.name, time.perf_counter())
                time.sleep(_POLL_S)
        finally:
            # After an error; the command ends its cluster.
            process.terminate()
    if process.returncode:
        raise RuntimeError(f"roundhouse run exited with {process.returncode}")
    return _Run(_WINDOW * steady_rate(list(ends_s.values())), time.perf_counter() - started_s)


def steady_rate(ends_s: list[float]) -> float:
    """Return the windows per second in the middle half of the windows: the slope of the line through their ends."""
    quarter = len(ends_s) // 4
    middle_s = sorted(ends_s)[quarter : len(ends_s) - quarter]
    slope: float = np.polyfit(middle_s, range(len(middle_s)), 1)[0]
    return slope
