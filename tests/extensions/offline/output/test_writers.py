"""Output files in each format."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extensions.offline.columns import json_field
from extensions.offline.job import open_reader
from extensions.offline.output.writers import open_writer


@pytest.fixture
def table() -> pa.Table:
    numbers = pa.array(np.array([0.1, 1.5, 2.0, -3.25], np.float32))
    fields = [
        pa.field("id", pa.int64()),
        pa.field("text", pa.string()),
        json_field("raw"),
        pa.field("embedding", pa.list_(pa.float32(), 2)),
    ]
    columns = [
        pa.array([1, 2]),
        pa.array(['say "hi", you', None]),
        pa.array(['{"a":[1]}', None]),
        pa.FixedSizeListArray.from_arrays(numbers, 2),
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def write(path: Path, file_format: str, table: pa.Table) -> None:
    with open_writer(path, file_format, table.schema) as writer:
        writer.write(table.slice(0, 1))
        writer.write(table.slice(1))


def test_parquet_output_equals_tables(tmp_path: Path, table: pa.Table) -> None:
    write(tmp_path / "a.parquet", "parquet", table)
    assert pq.read_table(tmp_path / "a.parquet").equals(table)


def test_json_lines_output_has_values(tmp_path: Path, table: pa.Table) -> None:
    write(tmp_path / "a.jsonl", "jsonl", table)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": 1, "text": 'say "hi", you', "raw": {"a": [1]}, "embedding": [0.1, 1.5]},
        {"id": 2, "text": None, "raw": None, "embedding": [2.0, -3.25]},
    ]


def test_csv_output_is_read_again(tmp_path: Path, table: pa.Table) -> None:
    write(tmp_path / "a.csv", "csv", table)
    (window,) = open_reader(tmp_path / "a.csv", "csv").windows(10, 0)
    assert window.table.to_pylist() == [
        {"id": "1", "text": 'say "hi", you', "raw": '{"a":[1]}', "embedding": "[0.1,1.5]"},
        {"id": "2", "text": None, "raw": None, "embedding": "[2.0,-3.25]"},
    ]


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_output_without_rows_is_valid(tmp_path: Path, table: pa.Table, file_format: str) -> None:
    path = tmp_path / f"a.{file_format}"
    with open_writer(path, file_format, table.schema):
        pass
    assert open_reader(path, file_format).num_rows == 0
