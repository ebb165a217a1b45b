"""Measure `roundhouse run`: its rate beside that of sentence-transformers, and its memory by the number of rows."""

import asyncio
import io
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer

from app.cli.model_paths import with_models
from app.config import load_settings
from extensions.offline.input.files import find_files
from extensions.offline.job import RunJob, run_job
from extensions.offline.local_model import LocalModel, open_local_model
from extensions.offline.requests import RowSource
from memory.sizes import format_size
from tools.bench.shared.corpus import WORDS
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import ROOT
from tools.bench.shared.table import Row

_TEXTS = 2_048
_ROUNDS = 3
_FEW_ROWS = 10_000
_MANY_ROWS = 1_000_000


def measure_offline(folder: Path, models: Path) -> list[Row]:
    """Compare the rates in alternating rounds, then the memory of two processes."""
    return [*_rates(folder, models), _memory(folder, models / "digits")]


def _rates(folder: Path, models: Path) -> list[Row]:
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(4, 130))) for _ in range(_TEXTS)]
    source = folder / "texts.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    peer = SentenceTransformer(str(models / "minilm"), device="cpu")
    rows = []
    with asyncio.Runner() as runner:
        for name, label in (("minilm-onnx", "ONNX"), ("minilm", "PyTorch")):
            stack = AsyncExitStack()
            loaded = load_settings(None, {}, {})
            loaded = replace(loaded, settings=with_models(loaded.settings, [str(models / name)]))
            model = runner.run(stack.enter_async_context(open_local_model(loaded, name)))
            files = find_files(str(source), folder / f"{name}.parquet")
            job = RunJob(files, folder / f"{name}.parts", RowSource("text", {}, "text", {}), restart=True)

            def ours(job: RunJob = job, model: LocalModel = model) -> float:
                return _rate(lambda: runner.run(run_job(job, model, io.StringIO())))

            def theirs() -> float:
                return _rate(lambda: peer.encode(texts, batch_size=32))

            rates = in_turn({"ours": ours, "theirs": theirs}, _ROUNDS)
            run_s = sum(_TEXTS / rate for rate in rates["ours"])
            compute_s = sum(model.slot.batches.seconds.values())
            runner.run(stack.aclose())
            rows.append(
                Row(
                    f"roundhouse run: {_TEXTS} texts of 4 to 130 words, MiniLM ({label})",
                    f"{median(rates['ours']):.0f} texts/s, {ratio(rates['ours'], rates['theirs']):.2f} times",
                    "1.0 times",
                    f"SentenceTransformer.encode: {median(rates['theirs']):.0f} texts/s",
                )
            )
            rows.append(
                Row(
                    f"the same, MiniLM ({label}): share of the time in which the model computes",
                    f"{compute_s / run_s * 100:.1f} %",
                    "98 %",
                )
            )
    return rows


def _rate(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return _TEXTS / (time.perf_counter() - started_s)


def _memory(folder: Path, model: Path) -> Row:
    """Run a small tensor model over few and many rows, as the rows alone decide."""
    peaks = [_peak_bytes(folder, model, rows) for rows in (_FEW_ROWS, _MANY_ROWS)]
    return Row(
        f"roundhouse run: peak resident memory of {_MANY_ROWS:,} rows of 64 numbers",
        format_size(peaks[1]),
        "flat",
        f"{_FEW_ROWS:,} rows: {format_size(peaks[0])}",
    )


def _peak_bytes(folder: Path, model: Path, rows: int) -> int:
    source, output = folder / f"{rows}.parquet", folder / f"{rows}.out.parquet"
    numbers = pa.array(np.zeros(rows * 64, np.float32))
    pq.write_table(pa.table({"image": pa.FixedSizeListArray.from_arrays(numbers, 64)}), source, row_group_size=10_000)
    words = [
        sys.executable,
        "-m",
        "app",
        "run",
        str(model),
        str(source),
        str(output),
        "--columns",
        "image",
        "--restart",
    ]
    peak = 0
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, _resident_peak_bytes(process.pid))
            time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"roundhouse run exited with {process.returncode}")
    return peak


def _resident_peak_bytes(pid: int) -> int:
    """Return the kernel's peak of a running process. That of `wait4` includes the process that started it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
