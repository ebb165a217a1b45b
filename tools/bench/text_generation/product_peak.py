"""Measure the fastest products of a CPU core, by which a prefill is judged.

`python -m tools.bench.text_generation.product_peak DTYPE OUTPUTS INPUTS ROWS` prints the floating-point operations a
second of oneDNN's packed product, the shortest of several runs.
"""

import os
import subprocess
import sys
import time

from tools.bench.shared.cores import SERVER_CORES, on_cores
from tools.bench.shared.instruction_sets import mask
from tools.bench.shared.servers import ROOT

_RUNS = 12


def product_peak(dtype: str, outputs: int, inputs: int, rows: int) -> float:
    """Return the operations a second on the servers' core. `dtype`: f32 or bf16."""
    command = [sys.executable, "-m", "tools.bench.text_generation.product_peak"]
    command += [dtype, str(outputs), str(inputs), str(rows)]
    with on_cores(SERVER_CORES):
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=_environment())
    return float(found.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **mask()}


def main(dtype: str, outputs: str, inputs: str, rows: str) -> None:
    """Print the figure."""
    import torch

    from frameworks.pytorch.kernels import pack

    torch.set_num_threads(1)
    of = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    weight, given = pack(torch.ones(int(outputs), int(inputs), dtype=of)), torch.ones(int(rows), int(inputs), dtype=of)
    best_s = float("inf")
    with torch.inference_mode():
        for _ in range(_RUNS):
            started_s = time.perf_counter()
            torch.ops.mkldnn._linear_pointwise(given, weight, None, "none", [], "")
            best_s = min(best_s, time.perf_counter() - started_s)
    print(2 * int(outputs) * int(inputs) * int(rows) / best_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
