"""Images, audio and video of a run: files of a folder, and columns with bytes, base64 or paths.

Files are read one request at a time.
"""

import wave
from base64 import b64encode
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from PIL import Image

from extensions.offline.columns import is_json, is_text
from extensions.offline.contract import RowRequest, UnreadableRow, WrongCommand

FILES_PER_REQUEST = 8
"""A damaged file makes all files of its request run again, each alone."""
WINDOW_ROWS = 256
"""Default rows of a window. Those of Parquet hold the files themselves."""
MAX_FILE_BYTES = 64 * 1024**2

_REQUEST_BYTES = 8 * 1024**2
"""A request takes no further file above this size."""
_EXAMPLE_RATE = 16_000


class MediaRows:
    """Files of a column. `bad` grows while `requests` is read, as each file is opened for its request only."""

    def __init__(self, table: pa.Table, column: str, root: Path | None, field: str, options: Mapping[str, Any]) -> None:
        """`root`: the folder of paths; None: the column holds the files themselves. `field`: one of MEDIA."""
        values = table.column(column)
        if pa.types.is_struct(values.type):
            values = pa.chunked_array(
                [chunk.field("bytes") for chunk in values.chunks], values.type.field("bytes").type
            )
        self._values = values
        self._root = None if root is None else root.resolve()
        self._field = field
        self._options = options
        self.bad: list[tuple[int, str]] = []

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        positions: list[int] = []
        files: list[str] = []
        size = 0
        for position in range(len(self._values)):
            try:
                file = self._read(position)
            except UnreadableRow as error:
                self.bad.append((position, str(error)))
                continue
            if files and (len(files) >= min(max_rows, FILES_PER_REQUEST) or size + len(file) > _REQUEST_BYTES):
                yield RowRequest(positions, self._body(files))
                positions, files, size = [], [], 0
            positions.append(position)
            files.append(file)
            size += len(file)
        if files:
            yield RowRequest(positions, self._body(files))

    def body(self, positions: list[int]) -> bytes:
        return self._body([self._read(position) for position in positions])

    def _body(self, files: list[str]) -> bytes:
        return orjson.dumps({self._field: files, **self._options})

    def _read(self, position: int) -> str:
        """Return an image as base64 or data URL. Raises UnreadableRow."""
        try:
            value = self._values[position].as_py()
        except UnicodeDecodeError:
            raise UnreadableRow(f"{self._field}: expected UTF-8, got other bytes") from None
        if isinstance(value, str) and self._root is not None:
            value = read_file(self._root, value, self._field)
        if isinstance(value, bytes):
            return encode_file(value, self._field)
        if isinstance(value, str):
            return value
        raise UnreadableRow(f"{self._field}: expected a file, got null")


def check_column(schema: pa.Schema, name: str, root: Path | None) -> None:
    """Raise WrongCommand for a column that cannot hold files."""
    field = schema.field(name)
    is_path = root is not None
    if is_text(field) and not is_json(field):
        return
    if is_path or not is_bytes(field.type):
        expected = "paths" if is_path else "bytes or base64"
        raise WrongCommand(f'--file-column: expected a column of {expected}, got "{name}" of {field.type}')


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are files: bytes, or structs with the field `bytes`."""
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def example_image(height: int, width: int) -> str:
    """Return a black PNG file of this size as base64: the options of a run are checked with it."""
    content = BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    return b64encode(content.getvalue()).decode()


def example_sound() -> str:
    """Return a second of silence as a WAV file in base64: the options of a run are checked with it."""
    content = BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, _EXAMPLE_RATE, 0, "NONE", "NONE"))
        file.writeframes(bytes(2 * _EXAMPLE_RATE))
    return b64encode(content.getvalue()).decode()


def encode_file(content: bytes, field: str) -> str:
    """Return a file as base64. Raises UnreadableRow for one that is empty or too large."""
    _check_size(len(content), field)
    return b64encode(content).decode()


def read_file(root: Path, value: str, field: str) -> bytes:
    """Return the file of a path, symbolic links followed, if it is below the root. Raises UnreadableRow.

    `root`: without symbolic links.
    """
    try:
        path = (root / value).resolve()
        if not path.is_relative_to(root):
            raise UnreadableRow(f"{field}: expected a path below the folder of the files, got another")
        # A pipe would block.
        if not path.is_file():
            raise UnreadableRow(f"{field}: expected a file, got a path without one")
        _check_size(path.stat().st_size, field)
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableRow(f"{field}: expected a file that can be read, got: {reason}") from None
    _check_size(len(content), field)
    return content


def _check_size(size: int, field: str) -> None:
    if not 0 < size <= MAX_FILE_BYTES:
        raise UnreadableRow(f"{field}: expected a file of 1 to {MAX_FILE_BYTES} bytes, got {size}")
