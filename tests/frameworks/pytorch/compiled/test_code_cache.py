"""The folder of compiled code: found again by the next process, replaced where it is damaged, and done without where
it cannot be written.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.machine_code import code_files
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiled.cpu_features import lanes

pytestmark = [pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"), pytest.mark.extended]

# The smallest function there is: its product would take seconds.
COMPILE = """
import ctypes, sys
from pathlib import Path
from frameworks.pytorch.compiled.cache import code_cache
code_cache.set_cache_folder(Path(sys.argv[1]))
from frameworks.pytorch.compiled import jit
import numpy as np

def double(arguments):
    arguments[0] = 2 * arguments[0]

if sys.argv[2:]:
    from frameworks.pytorch.compiled.cache import cached_function
    def fail(*_):
        raise OSError(28, "No space left on device")
    cached_function.write_code = fail
values = np.array([21])
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.address_of(double))(values.ctypes.data)
assert values[0] == 42
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


def double(arguments: Any) -> None:
    arguments[0] = 2 * arguments[0]


def triple(arguments: Any) -> None:
    arguments[0] = 3 * arguments[0]


DOUBLE, TRIPLE = "test_code_cache.double.code", "test_code_cache.triple.code"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code of both functions is kept there."""
    monkeypatch.setattr(code_cache, "_own", tmp_path)
    assert [result_of(double), result_of(triple)] == [(14, 0), (21, 0)]
    assert sorted(each.name for each in tmp_path.iterdir()) == [DOUBLE, TRIPLE]
    return tmp_path


def result_of(function: Callable[[Any], None]) -> tuple[int, int]:
    """Compile the function or read its code; return what it makes of 7, and how often it was read."""
    from frameworks.pytorch.compiled import jit

    values = np.array([7])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.address_of(function))(values.ctypes.data)
    return int(values[0]), jit._kept[-1].cache_hits


def other_content(file: Path) -> None:
    code_files.write_code(file, code_cache.code_key("test_code_cache.double"), b"no pickle")


def exchange(file: Path) -> None:
    other, between = file.with_name(TRIPLE), file.with_suffix(".between")
    file.rename(between)
    other.rename(file)
    between.rename(other)


def one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "head_only": lambda file: os.truncate(file, 10),
    "empty": lambda file: os.truncate(file, 0),
    "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "one_bit": one_bit,
    "exchanged": exchange,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_code_is_replaced(folder: Path, damage: Callable[[Path], object]) -> None:
    damage(folder / DOUBLE)
    with capture_logs() as logs:
        assert code_cache.missing(["test_code_cache.double"]) == ["test_code_cache.double"]
        assert result_of(double) == (14, 0)
    assert [each["event"] for each in logs] == ["damaged compiled code is compiled again"]
    assert code_cache.missing(["test_code_cache.double"]) == []
    assert result_of(double) == (14, 1)
    assert result_of(triple)[0] == 21


def test_whole_file_of_no_code_is_replaced(folder: Path) -> None:
    other_content(folder / DOUBLE)
    assert result_of(double) == (14, 0)
    assert result_of(double) == (14, 1)


def test_code_for_another_cpu_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(code_cache, "_digest", lambda: "another CPU")
        assert code_cache.missing(["test_code_cache.double"]) == ["test_code_cache.double"]
        assert result_of(double) == (14, 0)
    assert result_of(double) == (14, 0)


def test_file_that_cannot_be_replaced_is_not_used(folder: Path) -> None:
    (folder / DOUBLE).unlink()
    (folder / DOUBLE).mkdir()  # neither read nor replaced, also by root
    with capture_logs() as logs:
        assert result_of(double) == (14, 0)
    assert [each["event"] for each in logs] == [
        "damaged compiled code is compiled again",
        "compiled code could not be kept",
    ]
    assert sorted(each.name for each in folder.iterdir()) == [DOUBLE, TRIPLE]


def test_part_is_missing_with_one_damaged_function(folder: Path) -> None:
    for name in ("m._together", "m._region", "n._region"):
        code_files.write_code(folder / f"{name}.code", code_cache.code_key(name), b"code")
    assert code_cache.missing(["m._region", "n._region"]) == []
    os.truncate(folder / "m._together.code", 0)
    assert code_cache.missing(["m._region", "n._region"]) == ["m._region"]


def test_replaced_file_is_synced_before_its_rename(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: Any = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("sync") or sync(descriptor))
    monkeypatch.setattr(os, "replace", lambda *files: order.append("replace") or replace(*files))
    code_files.write_code(folder / DOUBLE, "key", b"content")
    assert order == ["sync", "replace", "sync"]
    assert code_files.read_code(folder / DOUBLE, "key") == b"content"
