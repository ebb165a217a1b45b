"""Compile a function in another process, keep its code, and link it without numba."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frameworks.core.machine_code import object_code
from frameworks.core.machine_code.object_code import NoMachineCode, is_available, link

pytestmark = pytest.mark.skipif(not is_available(), reason="numba is not installed")
MODULE = "tests.support.compiled_double"
WITHOUT_NUMBA = """
import sys
from pathlib import Path
import numpy as np
from frameworks.core.machine_code.object_code import link
values = np.array([21])
link(sys.argv[1], Path(sys.argv[2]))(values.ctypes.data)
assert values[0] == 42
print(sorted({"numba", "torch"} & set(sys.modules)))
"""


def doubled(folder: Path) -> int:
    values = np.array([21])
    link(MODULE, folder)(values.ctypes.data)
    return int(values[0])


def test_link_keeps_and_renews_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "code"
    assert doubled(folder) == 42
    (file,) = folder.glob("*.code")
    code = file.read_bytes()
    file.write_bytes(code[:-1])
    assert doubled(folder) == 42
    assert file.read_bytes() == code
    monkeypatch.setattr(object_code, "run_module", None)  # nothing is compiled again
    assert doubled(folder) == 42


def test_link_imports_no_compiler(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, MODULE, str(tmp_path)],
        check=False,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_link_reports_failures(tmp_path: Path) -> None:
    with pytest.raises(NoMachineCode, match="compiled_function"):
        link("tests.support.held_code", tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NoMachineCode, match=r"File exists|Not a directory"):
        link(MODULE, file)
