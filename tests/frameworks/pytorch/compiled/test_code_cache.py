"""The folder of compiled code: found again by the next process, and done without where it cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.pytorch.compiled.vectors import lanes

pytestmark = [pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"), pytest.mark.extended]

# The smallest function there is: its product would take seconds.
COMPILE = """
import ctypes, sys
from pathlib import Path
from frameworks.pytorch.compiled import code_cache
code_cache.set_cache_folder(Path(sys.argv[1]))
from frameworks.pytorch.compiled import jit
import numpy as np

def double(arguments):
    arguments[0] = 2 * arguments[0]

if sys.argv[2:]:
    from numba.core.caching import IndexDataCacheFile
    def fail(*_):
        raise OSError(28, "No space left on device")
    IndexDataCacheFile.save = fail
numbers = np.array([21])
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.address_of(double))(numbers.ctypes.data)
assert numbers[0] == 42
print("hits", jit._kept[-1].cache_hits)
"""


def run(script: Path, *arguments: str) -> str:
    """Compile in a process of its own, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[4])
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "compile.py"
    file.write_text(COMPILE, encoding="utf-8")
    return file


def test_next_process_finds_compiled_code(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "made" / "compiled"
    assert "hits 0" in run(script, str(folder))
    [own] = folder.iterdir()
    assert own.stat().st_mode & 0o077 == 0
    assert "hits 1" in run(script, str(folder))


def test_code_is_compiled_without_writable_folder(tmp_path: Path, script: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    printed = run(script, str(file / "below"))
    assert "hits 0" in printed
    assert "compiled code is not kept" in printed


def test_code_is_compiled_on_full_disk(tmp_path: Path, script: Path) -> None:
    printed = run(script, str(tmp_path / "compiled"), "full")
    assert "hits 0" in printed
    assert "compiled code could not be kept" in printed
