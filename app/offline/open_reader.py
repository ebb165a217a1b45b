"""Open an input file by its format."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from app.offline.errors import WrongCommand
from app.offline.image_folder import ImageFolderReader
from app.offline.readers import CsvReader, JsonLinesReader, ParquetReader, Reader

_READERS: dict[str, Callable[[Path], Reader]] = {
    "parquet": ParquetReader,
    "csv": CsvReader,
    "jsonl": JsonLinesReader,
    "images": ImageFolderReader,
}


def open_reader(path: Path, file_format: str) -> Reader:
    """Return the reader of a file. Raises WrongCommand for a file of another format, OSError."""
    try:
        return _READERS[file_format](path)
    except pa.ArrowInvalid as error:
        raise WrongCommand(f"{path}: expected a {file_format} file, got another or a damaged one: {error}") from error
