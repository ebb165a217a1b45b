"""Keep the finished windows of a run on disk, so that the same command resumes it after any end of the process.

`OUTPUT.parts/` has a manifest, and a folder for each input file with an Arrow file for each window. All files are
written under another name and renamed when they are complete. A window is done when its Arrow file exists. An output
file is done when its mark exists; then its parts are deleted. The folder is renamed before it is deleted.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from extensions.offline.contract import WrongCommand
from extensions.offline.input.files import InputFile, format_of
from extensions.offline.input.readers import BadRow
from extensions.offline.output.writers import open_writer

Identity = dict[str, Any]
"""The parts of a run that must be equal to resume it, such as `model` and `options`: plain JSON values."""


class FileParts:
    """The windows of one input file."""

    def __init__(self, folder: Path, file: InputFile) -> None:
        self._folder = folder
        self._file = file
        self._mark = folder.with_suffix(".done")
        folder.mkdir(exist_ok=True)
        self.done = {int(path.stem) for path in folder.glob("*.arrow")}
        """The numbers of the finished windows. Those of a run on Ray finish in any order."""

    @property
    def is_merged(self) -> bool:
        """Whether the output file is complete."""
        return self._mark.exists()

    def add(self, number: int, table: pa.Table, bad: list[BadRow]) -> None:
        """Write a window. It is kept from the moment when its Arrow file has its name. Raises OSError."""
        lines = [{"file": str(self._file.path), "row": row, "reason": reason} for row, reason in sorted(bad)]
        # First: a window without its bad rows would be a loss. Written again if the process ends here.
        _publish(self._errors(number), lambda file: file.writelines(orjson.dumps(each) + b"\n" for each in lines))
        _publish(self._part(number), lambda file: _write_arrow(file, table))
        self.done.add(number)

    def merge(self) -> None:
        """Write the output file from all windows, one after the other, unless it is done. Raises OSError."""
        if not self.is_merged:
            schema = self._output_schema()
            scratch = self._folder.with_suffix(".output")
            with open_writer(scratch, format_of(self._file.output), schema) as writer:
                for number in sorted(self.done):
                    with pa.memory_map(str(self._part(number))) as source:
                        table = pa.ipc.open_file(source).read_all()
                        if table.num_rows:
                            writer.write(table)
            _sync(scratch)
            self._file.output.parent.mkdir(parents=True, exist_ok=True)
            scratch.replace(self._file.output)
            _publish(self._mark, lambda _: None)
        for path in self._folder.glob("*.arrow"):
            path.unlink()

    def error_lines(self) -> Iterator[bytes]:
        """Yield the lines of all bad rows, in their order."""
        for path in sorted(self._folder.glob("*.errors")):
            with path.open("rb") as file:
                yield from file

    def num_bad(self) -> int:
        return sum(1 for _ in self.error_lines())

    def _output_schema(self) -> pa.Schema:
        """Return the schema of the first window with rows; windows without a result lack the columns of results."""
        schema = pa.schema([])
        for number in sorted(self.done):
            with pa.memory_map(str(self._part(number))) as source:
                part = pa.ipc.open_file(source)
                schema = part.schema
                if any(part.get_batch(i).num_rows for i in range(part.num_record_batches)):
                    break
        return schema

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:08d}.arrow"

    def _errors(self, number: int) -> Path:
        return self._folder / f"{number:08d}.errors"


class RunParts:
    """The folder of a run. One process at a time has it."""

    def __init__(self, folder: Path, files: list[InputFile]) -> None:
        self._folder = folder
        self.files = [FileParts(folder / f"{i:06d}", file) for i, file in enumerate(files)]

    def finish(self, errors: Path | None) -> int:
        """Write the file of bad rows, delete the folder, and return the number of bad rows. Raises OSError."""
        num_bad = sum(each.num_bad() for each in self.files)
        if errors is not None:
            scratch = self._folder / "errors"
            with scratch.open("wb") as file:
                for each in self.files:
                    file.writelines(each.error_lines())
            _sync(scratch)
            # Another file system may hold it.
            shutil.copyfile(scratch, _beside(errors))
            _beside(errors).replace(errors)
        finished = finished_folder(self._folder)
        shutil.rmtree(finished, ignore_errors=True)
        self._folder.rename(finished)
        shutil.rmtree(finished)
        return num_bad


@contextmanager
def open_parts(folder: Path, identity: Identity, files: list[InputFile], restart: bool = False) -> Iterator[RunParts]:
    """Begin or resume a run. `restart`: delete the parts of an earlier run, and replace its outputs.

    Raises WrongCommand for the parts of another run, for outputs that exist, and while another process has the folder.
    """
    # Left by a process that ended after its run was complete.
    shutil.rmtree(finished_folder(folder), ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        manifest = folder / "manifest.json"
        if restart:
            for each in folder.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        if manifest.exists():
            _check_same(json.loads(manifest.read_text(encoding="utf-8")), identity, folder)
        else:
            existing = [str(file.output) for file in files if file.output.exists()]
            if existing and not restart:
                folder.rmdir()
                raise WrongCommand(f"OUTPUT: expected a new file, got {existing[0]}, which exists; say --restart")
            text = json.dumps({"digest": _digest(identity), **identity}, indent=2).encode()
            _publish(manifest, lambda file: file.write(text))
        yield RunParts(folder, files)


def finished_folder(folder: Path) -> Path:
    """Return the name of the folder of a complete run, which is deleted."""
    return folder.with_name(folder.name + ".finished")


def _check_same(found: Identity, identity: Identity, folder: Path) -> None:
    if found.get("digest") == _digest(identity):
        return
    changed = [name for name in identity if found.get(name) != identity[name]]
    raise WrongCommand(
        f"{folder}: expected the parts of this run, got those of a run with other {', '.join(changed) or 'content'}; "
        "repeat the command of that run, or say --restart to begin again"
    )


def _digest(identity: Identity) -> str:
    return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder. The system releases it when the process ends, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WrongCommand(f"{folder}: another process works on this run; wait for it or end it") from None
        yield
    finally:
        os.close(descriptor)


def _publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that exists under its name only when it is complete."""
    scratch = _beside(path)
    with scratch.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_arrow(file: BinaryIO, table: pa.Table) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
