"""CPUs with VNNI for vectors of 256 bits, and without AVX-512: the tests of GEMM run as on one of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.pytorch.compiled.cpu_features import has_integers

pytestmark = pytest.mark.nightly

_LIKE_SUCH_A_CPU = {
    "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI",
    "ATEN_CPU_CAPABILITY": "avx2",
    "NUMBA_CPU_NAME": "x86-64-v3",
    "NUMBA_CPU_FEATURES": "+avxvnni",
}
_SAY = "from frameworks.pytorch.compiled.cpu_features import *; print(lanes(), has_vnni())"


def has_such_instructions() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return "avx_vnni" in flags and has_integers()


@pytest.mark.skipif(not has_such_instructions(), reason="this CPU has no VNNI for vectors of 256 bits")
def test_gemm_equals_that_of_other_cpus() -> None:
    assert _run("-c", _SAY).split() == ["8", "True"]
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in ("integer_gemm", "every_format")]
    assert "passed" in _run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)


def _run(*arguments: str) -> str:
    """Run Python as on such a CPU, and return what it prints."""
    root = Path(__file__).parents[4]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= _LIKE_SUCH_A_CPU | {"PYTHONPATH": str(root)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
