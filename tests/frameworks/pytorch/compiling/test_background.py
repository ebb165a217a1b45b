"""The process that compiles: one at a time for a folder, ended with the server, and failures with a reason."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.compiling import background
from frameworks.pytorch.compiling.background import CompilationFailed
from tests.support.held_code import wait_until

pytestmark = [pytest.mark.skipif(not lanes(), reason="no products are compiled for this CPU"), pytest.mark.extended]

# The real process; its part is a file. The first one waits until `go` is there.
CHILD = """
import os, sys, time
from pathlib import Path
from frameworks.pytorch.compiling import parts as code_parts, process as compiler_process
folder = Path(sys.argv[1])
(folder / f"started {os.getpid()}").touch()
def compile_part(part):
    (folder / f"pid {os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    with (folder / "compiled").open("a") as file:
        file.write(part)
    (folder / part).touch()
code_parts.compile_part = compile_part
code_parts.missing_parts = lambda parts: [part for part in parts if not (folder / part).exists()]
compiler_process.main()
"""
SERVER = """
import sys
from pathlib import Path
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiling import background
code_cache.use_folder(Path(sys.argv[1]))
background.command = lambda folder, parts: [sys.executable, sys.argv[2], str(folder), *parts]
background.compile_parts(["float32"], "m").result()
"""
TEMPORARY = """
import sys
from pathlib import Path
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiling import background
code_cache.set_cache_folder(Path(sys.argv[1]))
folders = []
def command(folder, parts):
    folders.append(folder)
    failed = "sys.exit(3)" if len(sys.argv) > 2 and len(folders) == 1 else ""
    return [sys.executable, "-c", f"import sys; print('no space', file=sys.stderr); {failed}"]
background.command = command
background.compile_parts(["float32"], "m").result()
assert folders[-1].exists() and code_cache.code_folder() == folders[-1]
print("folder", len(folders), folders[-1])
"""


def environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return found | {"PYTHONPATH": str(Path(__file__).parents[4])}


def script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text, encoding="utf-8")
    return file


def start(*words: object) -> "subprocess.Popen[bytes]":
    """Start a process; leaving its block closes its standard input."""
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE)


def ids(folder: Path, kind: str) -> list[int]:
    return [int(each.name.rpartition(" ")[2]) for each in folder.glob(f"{kind} *")]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    return made


@pytest.fixture(name="held")
def _held(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Nothing is in the cache, whose folder this is."""
    monkeypatch.setattr(code_cache, "missing", list)
    monkeypatch.setattr(code_cache, "_own", folder)
    return folder


def fails_with(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(background, "command", lambda *_: [sys.executable, "-c", *words])
    future = background.compile_parts(["float32"], "m")
    assert future is not None
    error = future.exception()
    assert isinstance(error, CompilationFailed)
    return str(error)


def test_two_processes_compile_once(tmp_path: Path, folder: Path) -> None:
    file = script(tmp_path, CHILD)
    with start(file, folder, "float32") as one, start(file, folder, "float32") as other:
        wait_until(lambda: len(ids(folder, "started")) == 2 and ids(folder, "pid"))
        (folder / "go").touch()
        assert [one.wait(), other.wait()] == [0, 0]
    assert (folder / "compiled").read_text() == "float32"


def test_process_ends_with_killed_server(tmp_path: Path, folder: Path) -> None:
    with start("-c", SERVER, folder, script(tmp_path, CHILD)) as server:
        wait_until(lambda: ids(folder, "pid"))
        [pid] = ids(folder, "pid")
        descriptor = os.pidfd_open(pid)
        try:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            assert select.select([descriptor], [], [], 60)[0]
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("is_full", [False, True])
def test_unwritable_folder_gives_temporary_one(tmp_path: Path, is_full: bool) -> None:
    file = tmp_path / "file"
    if not is_full:
        file.touch()  # below a file nothing can be made
    words = [sys.executable, "-c", TEMPORARY, str(file / "below"), *["full"] * is_full]
    done = subprocess.run(words, check=False, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("folder")]
    _, count, folder = line.split(" ")
    assert int(count) == 1 + is_full
    assert not Path(folder).exists()
    assert not Path(folder).is_relative_to(tmp_path)


def test_last_line_is_the_reason(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["import sys; print('trace\\n\\nno LLVM\\n', file=sys.stderr); sys.exit(1)"]
    with capture_logs() as logs:
        assert fails_with(words, monkeypatch) == "no LLVM"
    assert [each["event"] for each in logs] == ["compiling kernels for this CPU"]


def test_slow_process_is_ended(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "TIMEOUT_S", 0.05)
    assert fails_with(["import time; time.sleep(3600)"], monkeypatch) == "it took longer than 0.05 s"


def test_missing_program_is_a_failure(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "command", lambda *_: ["/nothing/here"])
    future = background.compile_parts(["float32"], "m")
    assert future is not None
    assert "FileNotFoundError" in str(future.exception())
