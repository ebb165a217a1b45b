"""Read files in windows of rows: Parquet, CSV and JSON Lines. The memory does not depend on the size of the file.

Types are never guessed from a part of the file. The columns of CSV are text. Those of JSON Lines get their types from
a first pass over all rows.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from extensions.offline.columns import field_of, merge_kind, to_column
from extensions.offline.contract import RunFailed, UnreadableRow, WrongCommand

# A row that is longer is a missing quote.
_MAX_CELL_CHARACTERS = 64 * 1024 * 1024
_FEW_BRACKETS = 200
"""A line with more of them may be nested too deeply."""


Raw = TypeVar("Raw")
Row = TypeVar("Row")


class BadRow(NamedTuple):
    """A row without a result. `row`: its number in the input file, from 1."""

    row: int
    reason: str


class Window(NamedTuple):
    """Consecutive rows of a file. `rows`: the number of each row of `table`; `bad`: the rows that cannot be read."""

    table: pa.Table
    rows: list[int]
    bad: list[BadRow]


class RowReader(Protocol):
    """One input file. `schema`: the columns of all windows. `num_rows`: with those that cannot be read."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def num_rows(self) -> int: ...

    def windows(self, size: int, first: int) -> Iterator[Window]:
        """Yield windows of `size` rows from window number `first` on. The last one may be shorter."""
        ...


def read_rows(
    numbered: Iterable[tuple[int, Raw]], read: Callable[[Raw], Row]
) -> tuple[list[Row], list[int], list[BadRow]]:
    """Return the rows that `read` accepts, their numbers, and those for which it raises UnreadableRow."""
    good: list[Row] = []
    rows: list[int] = []
    bad: list[BadRow] = []
    for number, raw in numbered:
        try:
            good.append(read(raw))
            rows.append(number)
        except UnreadableRow as error:
            bad.append(BadRow(number, str(error)))
    return good, rows, bad


class ParquetReader:
    """Read a Parquet file. Row groups before the first window are not decoded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with pq.ParquetFile(path) as file:
            self.schema = file.schema_arrow.remove_metadata()
            self.num_rows = int(file.metadata.num_rows)

    def windows(self, size: int, first: int) -> Iterator[Window]:
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            skipped, group = first * size, 0
            while group < file.num_row_groups and skipped >= file.metadata.row_group(group).num_rows:
                skipped -= file.metadata.row_group(group).num_rows
                group += 1
            start = first * size
            batches = file.iter_batches(batch_size=size, row_groups=list(range(group, file.num_row_groups)))
            for table in _rebatched(batches, self.schema, size, skipped):
                yield Window(table, list(range(start + 1, start + 1 + table.num_rows)), [])
                start += table.num_rows


def _rebatched(batches: Iterable[pa.RecordBatch], schema: pa.Schema, size: int, skipped: int) -> Iterator[pa.Table]:
    """Yield tables of `size` rows from batches of any size, without the first `skipped` rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for each in batches:
        batch = each
        if skipped:
            dropped = min(skipped, each.num_rows)
            batch, skipped = each.slice(dropped), skipped - dropped
        while batch.num_rows:
            part = batch.slice(0, size - rows)
            held.append(part)
            rows += part.num_rows
            batch = batch.slice(part.num_rows)
            if rows == size:
                yield pa.Table.from_batches(held, schema=schema)
                held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, schema=schema)


class CsvReader:
    """Read a CSV file with a header. All columns are text; an empty cell is null."""

    def __init__(self, path: Path) -> None:
        self._path = path
        header = next(self._records(), (0, []))[1]
        if not header or len(set(header)) != len(header):
            raise WrongCommand(f"{path}: expected a header line with different names, got {header}; add one")
        self.schema = pa.schema([pa.field(name, pa.string()) for name in header])
        self.num_rows = sum(1 for _ in self._records()) - 1

    def windows(self, size: int, first: int) -> Iterator[Window]:
        names = self.schema.names
        records = islice(self._records(), 1 + first * size, None)
        while chunk := list(islice(records, size)):
            good, rows, bad = read_rows(chunk, lambda cells: _checked_cells(cells, len(names)))
            columns = [pa.array([cells[i] or None for cells in good], pa.string()) for i in range(len(names))]
            yield Window(pa.Table.from_arrays(columns, schema=self.schema), rows, bad)

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the cells of each row with its number; 0 is the header. Empty lines are no rows."""
        # Of the process: a worker of Ray has another one.
        csv.field_size_limit(_MAX_CELL_CHARACTERS)
        with self._path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file)
            try:
                yield from enumerate(cells for cells in reader if cells)
            except csv.Error as error:
                raise RunFailed(f"{self._path}, line {reader.line_num}: {error}; correct the quotes") from error


def _checked_cells(cells: list[str], num_columns: int) -> list[str]:
    if len(cells) != num_columns:
        raise UnreadableRow(f"row: expected {num_columns} cells, got {len(cells)}")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        raise UnreadableRow("row: expected UTF-8, got other bytes") from None
    return cells


class JsonLinesReader:
    """Read a file with a JSON object in each line. Empty lines are no rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kinds: dict[str, str] = {}
        self.num_rows = 0
        for line in self._lines():
            self.num_rows += 1
            with suppress(UnreadableRow):
                for name, value in _read_object(line).items():
                    kinds[name] = merge_kind(kinds.get(name), value)
        self.schema = pa.schema([field_of(name, kind) for name, kind in kinds.items()])

    def windows(self, size: int, first: int) -> Iterator[Window]:
        numbered = islice(enumerate(self._lines(), 1), first * size, None)
        while chunk := list(islice(numbered, size)):
            good, rows, bad = read_rows(chunk, _read_object)
            columns = [to_column(field, [values.get(field.name) for values in good]) for field in self.schema]
            yield Window(pa.Table.from_arrays(columns, schema=self.schema), rows, bad)

    def _lines(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield line


def _read_object(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises UnreadableRow."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UnreadableRow(f"row: expected a JSON object, got invalid JSON: {error.msg}") from None
    if not isinstance(values, dict):
        raise UnreadableRow(f"row: expected a JSON object, got {line[:40].decode(errors='replace').strip()}")
    if line.count(b"[") + line.count(b"{") > _FEW_BRACKETS:
        _check_depth(values)
    return values


def _check_depth(values: dict[str, Any]) -> None:
    """Raise UnreadableRow for values that orjson reads, and nests too deeply to write."""
    try:
        orjson.dumps(values)
    except TypeError:
        raise UnreadableRow("row: expected fewer than 250 nested arrays and objects, got more; flatten them") from None
