"""Open an input file by its format."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from app.cli.failures import unusable
from extensions.offline.errors import WrongCommand
from extensions.offline.input.image_folder import ImageFolderReader
from extensions.offline.input.readers import CsvReader, JsonLinesReader, ParquetReader, Reader

_READERS: dict[str, Callable[[Path], Reader]] = {
    "parquet": ParquetReader,
    "csv": CsvReader,
    "jsonl": JsonLinesReader,
    "images": ImageFolderReader,
}


def open_reader(path: Path, file_format: str) -> Reader:
    """Return the reader of a file. Raises WrongCommand for one that cannot be read, or has another format."""
    try:
        reader = _READERS[file_format](path)
        # Names of columns that are not UTF-8.
        names = [each.encode() for each in reader.schema.names]
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise WrongCommand(f"{path}: expected a {file_format} file, got another or a damaged one: {error}") from error
    except OSError as error:
        raise WrongCommand(f"INPUT: expected a {file_format} file, got {unusable(path, error)}") from error
    if not names and reader.num_rows:
        raise WrongCommand(f"{path}: expected a {file_format} file, got none of its rows; correct the file")
    return reader
