"""Write tables to a file, one after the other: Parquet, CSV and JSON Lines."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from extensions.offline.columns import is_json


class Writer(Protocol):
    """An open output file."""

    def write(self, table: pa.Table) -> None:
        """Write the rows of one more table. All tables have one schema."""
        ...

    def close(self) -> None:
        """Write the end of the file."""
        ...


class ParquetFileWriter:
    """Each table becomes a row group."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class CsvFileWriter:
    """Lists are written as JSON; null is an empty cell."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._schema = pa.schema([pa.field(f.name, pa.string() if _is_list(f) else f.type) for f in schema])
        self._writer = pyarrow.csv.CSVWriter(file, self._schema)

    def write(self, table: pa.Table) -> None:
        columns = [
            pa.array(
                [None if value is None else _dumps(value).decode() for value in python_values(column)], pa.string()
            )
            if _is_list(field)
            else column
            for field, column in zip(table.schema, table.columns, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class JsonLinesFileWriter:
    """Each row becomes an object, nulls included."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        columns = []
        for field, column in zip(table.schema, table.columns, strict=True):
            values = python_values(column)
            if is_json(field):
                values = [None if value is None else orjson.Fragment(value) for value in values]
            columns.append(values)
        names = table.schema.names
        for row in zip(*columns, strict=True):
            self._file.write(_dumps(dict(zip(names, row, strict=True))) + b"\n")

    def close(self) -> None:
        pass


_WRITERS: dict[str, type[ParquetFileWriter] | type[CsvFileWriter] | type[JsonLinesFileWriter]] = {
    "parquet": ParquetFileWriter,
    "csv": CsvFileWriter,
    "jsonl": JsonLinesFileWriter,
}


@contextmanager
def open_writer(path: Path, file_format: str, schema: pa.Schema) -> Iterator[Writer]:
    """Write a new file. It is complete when the block ends without an error. Raises OSError."""
    with path.open("wb") as file:
        writer = _WRITERS[file_format](file, schema)
        yield writer
        writer.close()


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; a fixed-size list of scalars is a numpy array, which keeps float32 short."""
    if not pa.types.is_fixed_size_list(column.type) or not _is_number(column.type.value_type) or column.null_count:
        values: list[Any] = column.to_pylist()
        return values
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    if not chunks:
        return []
    return list(np.concatenate(chunks).reshape(-1, column.type.list_size))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(field: pa.Field) -> bool:
    return bool(pa.types.is_nested(field.type))


def _plain(value: Any) -> str:
    """Return a value that JSON has no form for: bytes in base64, times in ISO 8601, decimals as text."""
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
