"""Measure `roundhouse run --ray`: the rate of two workers of one core beside that of one worker."""

import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.corpus import WORDS
from tests.bench.rounds import in_turn
from tests.bench.servers import ROOT
from tests.bench.table import Row

_TEXTS = 2_048
_WINDOW = 64
_ROUNDS = 3
# Of the finished windows: the start of the workers and the end of the run are no part of the rate.
_FIRST, _LAST = 4, -4


def measure_ray_data(folder: Path, models: Path) -> list[Row]:
    """Compare the rates in alternating rounds. Each run has a cluster of its own."""
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(4, 130))) for _ in range(_TEXTS)]
    source = folder / "texts.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    model = models / "minilm-onnx"
    rates = in_turn({"one": lambda: _rate(model, source, 1), "two": lambda: _rate(model, source, 2)}, _ROUNDS)
    one, two = median(rates["one"]), median(rates["two"])
    return [
        Row(
            f"roundhouse run --ray: {_TEXTS} texts, MiniLM (ONNX), two workers of one core",
            f"{two:.0f} texts/s, {two / one:.2f} times",
            "1.8 times",
            f"one worker: {one:.0f} texts/s",
        )
    ]


def _rate(model: Path, source: Path, workers: int) -> float:
    """Return the texts per second between the first windows and the last ones."""
    output = source.with_name(f"{workers}.parquet")
    words = [sys.executable, "-m", "app", "run", str(model), str(source), str(output), "--column", "text", "--restart"]
    words += ["--window", str(_WINDOW), "--workers", str(workers), "--worker-cpus", "1", "--ray"]
    folder = output.with_name(output.name + ".parts")
    ends_s: dict[str, float] = {}
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for path in folder.glob("*/*.arrow"):
                ends_s.setdefault(path.name, time.perf_counter())
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"roundhouse run exited with {process.returncode}")
    times_s = sorted(ends_s.values())[_FIRST:_LAST]
    return _WINDOW * (len(times_s) - 1) / (times_s[-1] - times_s[0])
