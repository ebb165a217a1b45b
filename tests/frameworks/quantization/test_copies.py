"""Test copies below cache_dir: made once, never incomplete, replaced when damaged."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.core.files import contents_name
from frameworks.quantization.copies import QuantizedCopies
from frameworks.types import KernelTrial, QuantizationReport

REPORT = QuantizationReport(
    "int8", 0.98, 0.99, 2.0, 4, 1, 8.0, 4.0, "fbgemm", "paired", (KernelTrial("fbgemm", "paired", 0.02, {"16": 0.5}),)
)
ROOT = Path(__file__).parents[3]


class Making:
    """Write a copy, and count the calls."""

    def __init__(self, content: bytes = b"int8") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, folder: Path) -> QuantizationReport:
        self.calls += 1
        (folder / "model.onnx").write_bytes(self.content)
        return REPORT


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source.onnx"
    file.write_bytes(b"weights")
    return file


def test_copy_is_made_once_and_found_by_contents(tmp_path: Path, source: Path) -> None:
    making = Making()
    folder, report = QuantizedCopies(tmp_path / "cache").get([source], "int8", "1", making)
    assert report == REPORT
    assert (folder / "model.onnx").read_bytes() == b"int8"
    moved = tmp_path / "moved.onnx"
    source.rename(moved)
    assert QuantizedCopies(tmp_path / "cache").get([moved], "int8", "1", making) == (folder, REPORT)
    assert making.calls == 1


def test_contents_scheme_and_maker_have_separate_copies(tmp_path: Path, source: Path) -> None:
    copies, making = QuantizedCopies(tmp_path / "cache"), Making()
    folders = {copies.get([source], *key, making)[0] for key in (("int8", "1"), ("mixed", "1"), ("int8", "2"))}
    source.write_bytes(b"Weights")
    os.utime(source, ns=(1, 1))
    folders.add(copies.get([source], "int8", "1", making)[0])
    assert (len(folders), making.calls) == (4, 4)


def test_contents_name_depends_on_files_and_order(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    names = {contents_name(chosen, "") for chosen in (files, files[::-1], files[:2], files[1:])}
    assert len(names) == 4


def test_unchanged_file_is_read_once(source: Path) -> None:
    name = contents_name([source], "")
    state = source.stat()
    source.write_bytes(b"WEIGHTS")
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert contents_name([source], "") == name
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert contents_name([source], "") != name


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no report", "report cut", "report of another kind"])
def test_damaged_copy_is_replaced(tmp_path: Path, source: Path, damage: str) -> None:
    copies, making = QuantizedCopies(tmp_path / "cache"), Making()
    folder, _ = copies.get([source], "int8", "1", making)
    match damage:
        case "cut":
            (folder / "model.onnx").write_bytes(b"int")
        case "changed":
            (folder / "model.onnx").write_bytes(b"int4")
        case "gone":
            (folder / "model.onnx").unlink()
        case "no report":
            (folder / "report.json").unlink()
        case "report cut":
            (folder / "report.json").write_bytes((folder / "report.json").read_bytes()[:-1])
        case _:
            (folder / "report.json").write_bytes(b'{"report": {}, "files": {}}')
    assert copies.get([source], "int8", "1", making) == (folder, REPORT)
    assert making.calls == 2
    assert (folder / "model.onnx").read_bytes() == b"int8"


def test_failed_make_leaves_no_copy(tmp_path: Path, source: Path) -> None:
    def fail(folder: Path) -> QuantizationReport:
        (folder / "model.onnx").write_bytes(b"half")
        raise InvalidModel("not today")

    copies = QuantizedCopies(tmp_path / "cache")
    with pytest.raises(InvalidModel, match="not today"):
        copies.get([source], "int8", "1", fail)
    assert [file for file in (tmp_path / "cache" / "quantized").iterdir() if file.is_dir()] == []
    copies.get([source], "int8", "1", Making())


def test_incomplete_folder_of_crash_is_removed(tmp_path: Path, source: Path) -> None:
    copies = QuantizedCopies(tmp_path / "cache")
    name = f"{contents_name([source], '1')}-int8-v2"
    half = tmp_path / "cache" / "quantized" / f".{name}-abc"
    half.mkdir(parents=True)
    (half / "model.onnx").write_bytes(b"half")
    folder, _ = copies.get([source], "int8", "1", Making())
    assert (folder.name, half.exists()) == (name, False)


@pytest.mark.parametrize("obstacle", ["a file", "full"])
def test_unwritable_cache_dir_is_refused_with_remedy(tmp_path: Path, source: Path, obstacle: str) -> None:
    def full(_: Path) -> QuantizationReport:
        with Path("/dev/full").open("wb", buffering=0) as disk:
            disk.write(b"int8")
        return REPORT

    if obstacle == "a file":
        (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"models\.cache_dir = .*cache: .*free disk space, make it writable"):
        QuantizedCopies(tmp_path / "cache").get([source], "int8", "1", full)


def test_concurrent_threads_make_one_copy(tmp_path: Path, source: Path) -> None:
    copies, making = QuantizedCopies(tmp_path / "cache"), Making()
    threads = [threading.Thread(target=copies.get, args=([source], "int8", "1", making)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert making.calls == 1


_PROCESS = """
import sys, time
from pathlib import Path
from frameworks.quantization.copies import QuantizedCopies
from frameworks.types import QuantizationReport

def make(folder):
    print("making", flush=True)
    sys.stdin.readline()
    (folder / "model.onnx").write_bytes(b"int8")
    return QuantizationReport("int8", 0.98, 0.99, 2.0, 4, 1)

folder, report = QuantizedCopies(Path(sys.argv[1])).get([Path(sys.argv[2])], "int8", "1", make)
print("has", (folder / "model.onnx").read_bytes().decode(), flush=True)
"""


def _start(tmp_path: Path, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(tmp_path / "cache"), str(source)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if words in line:
            return lines
    raise AssertionError(f"ended without {words}: {lines}")


@pytest.mark.parametrize("first", ["ends", "is killed"])
def test_concurrent_processes_make_one_copy(tmp_path: Path, source: Path, first: str) -> None:
    with _start(tmp_path, source) as one, _start(tmp_path, source) as other:
        try:
            assert one.stdin is not None
            assert other.stdin is not None
            # One process makes the copy; the other logs that it waits.
            assert one.stdout is not None
            head = one.stdout.readline()
            maker, waiter = (one, other) if head.startswith("making") else (other, one)
            if maker is other:
                _lines_until(other, "making")
            else:
                _lines_until(other, "waiting for another")
            assert maker.stdin is not None
            assert waiter.stdin is not None
            if first == "ends":
                maker.stdin.write("\n")
                maker.stdin.flush()
                assert _lines_until(maker, "has")[-1] == "has int8"
                assert "making" not in _lines_until(waiter, "has")
            else:
                maker.kill()
                assert _lines_until(waiter, "making")[-1] == "making"
                waiter.stdin.write("\n")
                waiter.stdin.flush()
                assert _lines_until(waiter, "has") == ["has int8"]
        finally:
            one.kill()
            other.kill()
