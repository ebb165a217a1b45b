"""Build llama.cpp's server from the source that the package `llama-cpp-python` carries, and start it.

A build takes minutes and needs cmake and a C++ compiler. It is kept below `.bench/llama_cpp`. With BENCH_ISA=avx2 there
is a second one, which has no other instructions.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench.shared.cores import SERVER_CORES
from tools.bench.shared.instruction_sets import is_masked
from tools.bench.shared.servers import ROOT, RunningServer, started

VERSION = "0.3.36"
"""Of `llama-cpp-python`."""
_FOLDER = ROOT / ".bench" / "llama_cpp"
_TARGETS = ("llama-server", "llama-quantize")
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_MTMD=ON", "-DLLAMA_BUILD_UI=OFF",
)  # fmt: skip
# Without the machine's own instructions llama.cpp uses AVX2, FMA, F16C and BMI2.
_NATIVE, _AVX2 = "-DGGML_NATIVE=ON", "-DGGML_NATIVE=OFF"
_SLOTS = 16
# Room for 16 texts of the bench. One cache serves all of them.
_CONTEXT_TOKENS = 4096
# Those of images.
_IMAGE_TOKENS = 4096


def binaries() -> Path:
    """Return the folder with `llama-server` and `llama-quantize`. Raises RuntimeError where they cannot be built."""
    folder = _FOLDER / f"build-{VERSION}-images{'-avx2' if is_masked() else ''}"
    programs = folder / "bin"
    if all((programs / name).is_file() for name in _TARGETS):
        return programs
    if shutil.which("cmake") is None:
        raise RuntimeError("llama.cpp: cmake is not installed")
    print("building llama.cpp below .bench (minutes)", file=sys.stderr)
    source = _source()
    _run("cmake", "-S", str(source), "-B", str(folder), *_OPTIONS, _AVX2 if is_masked() else _NATIVE)
    jobs = str(len(os.sched_getaffinity(0)))
    _run("cmake", "--build", str(folder), "--target", *_TARGETS, "--parallel", jobs)
    return programs


def quantized(model: Path, kind: str) -> Path:
    """Return a copy of a GGUF file of float32 whose weights are all of `kind`, such as Q8_0."""
    path = model.with_name(f"{model.stem}-{kind.lower()}.gguf")
    if not path.exists():
        _run(str(binaries() / "llama-quantize"), "--pure", str(model), str(path), kind)
    return path


@contextmanager
def llama_server(model: Path, kind: str, projector: Path | None = None) -> Iterator[RunningServer]:
    """Start the server with `POST /v1/completions`, on the cores of servers, one thread for each.

    `model`: a GGUF file of float32. `kind`: of the weights that are served; F32: as they are. `projector`: the mmproj
    file of a model that sees. Raises RuntimeError if it does not run.
    """
    path = model if kind == "F32" else quantized(model, kind)
    command = [str(binaries() / "llama-server"), "--model", str(path), "--host", "127.0.0.1", "--port", "{port}"]
    context = _CONTEXT_TOKENS + (0 if projector is None else _IMAGE_TOKENS)
    command += ["--parallel", str(_SLOTS), "--kv-unified", "--ctx-size", str(context), "--offline"]
    command += ["--threads", str(len(SERVER_CORES)), "--log-disable"]
    if projector is not None:
        command += ["--mmproj", str(projector), "--jinja"]
    with started(command, "/health") as server:
        yield server


def _source() -> Path:
    """Return the folder of the source, downloaded when first needed."""
    source = _FOLDER / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.is_dir():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        _run(*pip, "--dest", str(_FOLDER), f"llama-cpp-python=={VERSION}")
        with tarfile.open(_FOLDER / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(_FOLDER, filter="data")
    return source


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise RuntimeError(f"llama.cpp: {command[0]}: {reason[-1] if reason else error!r}") from error
