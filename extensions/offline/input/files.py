"""Find the input files of a run, and the output file of each of them."""

import glob
from dataclasses import dataclass
from pathlib import Path

from extensions.offline.contract import WrongCommand

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""Suffix of a file name → format."""

_SUFFIXES = ", ".join(FORMATS)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of rows, as it was when the run began, and where its results are written."""

    path: Path
    size: int
    mtime_ns: int
    output: Path

    @property
    def identity(self) -> list[str | int]:
        """The values by which a run is resumed, and which change with the file."""
        return [str(self.path.resolve()), self.size, self.mtime_ns]

    @property
    def format(self) -> str:
        return format_of(self.path)

    @property
    def has_changed(self) -> bool:
        """Whether the file differs from the one that the run began with."""
        status = self.path.stat()
        return (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns)


def format_of(path: Path) -> str:
    """Return `parquet`, `csv` or `jsonl`. Raises WrongCommand for another suffix."""
    known = FORMATS.get(path.suffix.lower())
    if known is None:
        raise WrongCommand(f'{path}: expected a file name with {_SUFFIXES}, got "{path.suffix}"; rename it')
    return known


def find_files(source: str, output: Path, output_format: str | None = None) -> list[InputFile]:
    """Return the input files in the order of their names: of a file, a folder or a glob.

    Several files need a folder as output, which has a file of the same name for each. `output_format`: of the files
    in that folder, None for those of the input. Raises WrongCommand.
    """
    path = Path(source)
    if path.is_file():
        if output.is_dir():
            return _with_outputs([path], output, output_format)
        format_of(path)
        if output_format not in (None, format_of(output)):
            raise WrongCommand(f'OUTPUT: expected a file of format {output_format}, got "{output}"; leave --format out')
        if output.exists() and output.samefile(path):
            raise WrongCommand("OUTPUT: expected another file than INPUT, got the same; name a new file")
        return [_describe(path, output)]
    if path.is_dir():
        found = [each for each in path.iterdir() if each.suffix.lower() in FORMATS and each.is_file()]
    else:
        found = [Path(each) for each in glob.glob(source, recursive=True) if Path(each).is_file()]
    if not found and not path.exists() and not glob.has_magic(source):
        raise WrongCommand(
            f'INPUT: expected a file or a folder, got "{source}", which does not exist; correct the path'
        )
    if not found:
        raise WrongCommand(f'INPUT: expected files with {_SUFFIXES}, got "{source}" with none; check the path')
    if output.suffix.lower() in FORMATS or output.is_file():
        raise WrongCommand(f'OUTPUT: expected a folder for several input files, got "{output}"; name a folder')
    return _with_outputs(sorted(found), output, output_format)


def _with_outputs(paths: list[Path], folder: Path, output_format: str | None) -> list[InputFile]:
    files, taken = [], {path.resolve() for path in paths}
    for path in paths:
        suffix = path.suffix if output_format in (None, format_of(path)) else f".{output_format}"
        output = folder / (path.stem + suffix)
        if output.resolve() in taken:
            raise WrongCommand(f'OUTPUT: expected a new file for each input file, got "{output}" twice; use two runs')
        taken.add(output.resolve())
        files.append(_describe(path, output))
    return files


def _describe(path: Path, output: Path) -> InputFile:
    status = path.stat()
    return InputFile(path, status.st_size, status.st_mtime_ns, output)
