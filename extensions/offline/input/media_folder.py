"""A folder of images, sounds or videos as the input of a run: a row for each file, with its path in the folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from extensions.offline.contract import UnreadableRow, WrongCommand
from extensions.offline.input.files import InputFile, format_of
from extensions.offline.input.readers import Window, read_rows
from frameworks.images.headers import SUFFIXES as IMAGE_SUFFIXES

COLUMN = "file"
SUFFIXES: dict[str, tuple[str, ...]] = {
    "image": tuple(IMAGE_SUFFIXES),
    "audio": (
        ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aac", ".aif", ".aiff", ".m4a", ".mp4", ".webm", ".mka",
    ),
    "video": (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".ogv", ".ogg"),
}  # fmt: skip
"""Of the names of files that are rows, by the field of a request."""


@dataclass(frozen=True, slots=True)
class MediaFolderInput(InputFile):
    """`size`: of all files; `mtime_ns`: of the newest one. `digest`: of the paths, sizes and times of all of them.

    `field`: one of SUFFIXES.
    """

    digest: str = ""
    field: str = "image"

    @property
    def identity(self) -> list[str | int]:
        return [str(self.path.resolve()), self.digest]

    @property
    def format(self) -> str:
        return self.field

    @property
    def has_changed(self) -> bool:
        return _describe(self.path, self.output, self.field).digest != self.digest


class MediaFolderReader:
    """Yield the paths of the files, in the order of the paths. Only the paths are held in memory."""

    schema = pa.schema([(COLUMN, pa.string())])

    def __init__(self, folder: Path, field: str = "image") -> None:
        """`field`: one of SUFFIXES."""
        self._paths = sorted(path for path, _ in _files(folder, field))
        self.num_rows = len(self._paths)

    def windows(self, size: int, first: int) -> Iterator[Window]:
        for start in range(first * size, self.num_rows, size):
            good, rows, bad = read_rows(enumerate(self._paths[start : start + size], start + 1), _checked_path)
            yield Window(pa.Table.from_arrays([pa.array(good, pa.string())], schema=self.schema), rows, bad)


def find_media(source: str, output: Path, field: str = "image") -> MediaFolderInput:
    """Return the folder `source` and its output file. `field`: one of SUFFIXES. Raises WrongCommand."""
    folder = Path(source)
    if not folder.exists():
        raise WrongCommand(f'INPUT: expected a folder, got "{source}", which does not exist; correct the path')
    if not folder.is_dir():
        raise WrongCommand(f'INPUT: expected a folder beside --files, got "{source}"; name a folder')
    format_of(output)
    if output.resolve().is_relative_to(folder.resolve()):
        raise WrongCommand(f'OUTPUT: expected a file outside the folder of the files, got "{output}"; move it')
    found = _describe(folder, output, field)
    if not found.size:
        raise WrongCommand(f'INPUT: expected files with {", ".join(SUFFIXES[field])}, got "{source}" with none')
    return found


def _describe(folder: Path, output: Path, field: str) -> MediaFolderInput:
    digest, size, newest = sha256(), 0, 0
    for path, status in sorted(_files(folder, field), key=lambda each: each[0]):
        digest.update(os.fsencode(path) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        size += status.st_size
        newest = max(newest, status.st_mtime_ns)
    return MediaFolderInput(folder, size, newest, output, digest.hexdigest(), field)


def _files(folder: Path, field: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path in the folder and status of each file, in subfolders too. Links to folders are not followed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.suffix.lower() not in SUFFIXES[field] or not path.is_file():
                continue
            yield path.relative_to(folder).as_posix(), path.stat()


def _checked_path(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        reason = f"{COLUMN}: expected a path in UTF-8, got {os.fsencode(path)!r}; rename it"
        raise UnreadableRow(reason) from None
    return path
