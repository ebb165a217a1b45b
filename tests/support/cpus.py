"""Run the tests with the marker `isa` once for each of several CPUs, threads and loads that this machine can show.

A test whose sums have an order that a library chooses passes on one CPU and fails on another. Variables of the
environment make the libraries choose as on another CPU. No failed test runs a second time. Properties are tried with
fewer examples than by `make test-all`: one core runs all variants in minutes.

Usage: python -m tests.support.cpus [VARIANT...]
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = "pytest.mark.isa"
"""The text by which files are found: all others would be imported to find no test."""
CORE_TYPES = {
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "Zen": {"avx2", "fma"},
    "Nehalem": {"sse4_2"},
}
"""Kernels of OpenBLAS, and the flags of a CPU that can run them."""
OLDER_CPU = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "NUMBA_CPU_NAME": "x86-64-v3",
    "NUMBA_CPU_FEATURES": "+fma",
}
"""The instruction sets of a CPU without AVX-512, for torch, oneDNN and compiled code: one with fused multiply-add."""
_NEWER_FLAGS = {"avx512f", "avx_vnni"}
_EXAMPLES = 0.2
"""Factor of the examples of each property."""
_LIMIT_S = 1200.0
_HOG_S = 1800
_HOG = f"""
import os, time
parent, end = os.getppid(), time.monotonic() + {_HOG_S}
while time.monotonic() < end and os.getppid() == parent:
    sum(range(100_000))
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """`environ`: what a run of the tests gets. `is_busy`: each core has another process that computes."""

    name: str
    environ: dict[str, str]
    is_busy: bool = False


def variants(flags: set[str], numpy_features: Sequence[str]) -> list[Variant]:
    """Return the runs for a CPU with these flags. `numpy_features`: those of AVX-512 for which NumPy has loops.

    Each run of other kernels is on one thread.
    """
    one, two = _threads(1), _threads(2)
    found = []
    if "avx2" in flags and flags & _NEWER_FLAGS:
        # The first, as it also compiles.
        found.append(Variant("AVX2", one | OLDER_CPU))
    found += [
        Variant(f"OpenBLAS for {name}", one | {"OPENBLAS_CORETYPE": name})
        for name, needed in CORE_TYPES.items()
        if needed <= flags
    ]
    if numpy_features:
        found.append(Variant("NumPy without AVX-512", one | {"NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features)}))
    found = found or [Variant("one thread", one)]
    return [*found, Variant("two threads", two), Variant("busy cores", two, is_busy=True)]


def _threads(count: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))


def cpu_flags() -> set[str]:
    """Return the flags of this CPU, as Linux names them; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def numpy_features() -> list[str]:
    """Return the features of AVX-512 that NumPy uses on this CPU and that can be disabled."""
    # NumPy names them in no public place.
    numpy_loops: Any = importlib.import_module("numpy._core._multiarray_umath")
    known = numpy_loops.__cpu_features__
    return [name for name in numpy_loops.__cpu_dispatch__ if ("AVX512" in name or name == "X86_V4") and known[name]]


def isa_files(folder: Path = ROOT / "tests") -> list[str]:
    """Return the paths of the files that hold the text of the marker."""
    files = sorted(folder.rglob("test_*.py"))
    return [str(file) for file in files if MARK in file.read_text(encoding="utf-8")]


@contextmanager
def hogs(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Keep so many cores busy within the block. The processes end with this one, too."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", _HOG]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(chosen: Sequence[Variant], command: Sequence[str], cores: int) -> list[str]:
    """Run a command in each variant, and return the names of those in which it failed.

    One runs for each core, in one thread: libraries that compute in more wait for each other. A busy one runs beside
    them, which then are its load; without enough of them it has processes that only compute.
    """
    calm = [each for each in chosen if not each.is_busy]
    busy = [each for each in chosen if each.is_busy]
    load = hogs(cores) if busy and len(calm) < cores else nullcontext()
    with load, ThreadPoolExecutor(cores) as pool, ThreadPoolExecutor(1) as beside:
        ended = [beside.submit(_run, each, command) for each in busy]
        codes = dict(pool.map(lambda each: (each.name, _run(each, command)), calm))
        codes |= {each.name: code.result() for each, code in zip(busy, ended, strict=True)}
    return [each.name for each in chosen if codes[each.name]]


def _run(variant: Variant, command: Sequence[str]) -> int:
    """Return the exit code; print the whole output of a failure, else its last line."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variant.environ, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").rstrip().splitlines()
    shown = "\n".join(lines if code else lines[-1:])
    print(f"{variant.name} ({time.monotonic() - start:.0f} s): {shown}", flush=True)
    return code


def main(names: Sequence[str]) -> int:
    """Compile, then run the tests in each variant. Return 1 if a variant failed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    known = variants(cpu_flags(), numpy_features())
    chosen = [each for each in known if not names or each.name in names]
    if unknown := set(names) - {each.name for each in known}:
        print(f"variants: expected some of {[each.name for each in known]}, got {sorted(unknown)}", file=sys.stderr)
        return 2
    # Once, and not in each run. The run of the older CPU alone needs other code, and compiles what its tests need.
    failed = run([Variant("compiling", {})], [sys.executable, "-m", "tests.support.compiled_code"], cores)
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--examples", str(_EXAMPLES), "-m", "isa", *isa_files()]
    failed = failed or run(chosen, [sys.executable, *tests], cores)
    left_out = CORE_TYPES.keys() - {each.environ.get("OPENBLAS_CORETYPE") for each in known}
    if left_out:
        print("this CPU cannot run the kernels of OpenBLAS for:", *sorted(left_out))
    if failed:
        print("isa tests failed with:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
