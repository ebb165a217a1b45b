"""Windows of Parquet, CSV and JSON Lines files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.offline.columns import is_json, to_values
from extensions.offline.contract import RunFailed, WrongCommand
from extensions.offline.job import open_reader


@given(num_rows=st.integers(0, 40), group=st.integers(1, 15), size=st.integers(1, 12), first=st.integers(0, 5))
def test_parquet_windows_resume_anywhere(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, group: int, size: int, first: int
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pq.write_table(pa.table({"id": pa.array(range(num_rows), pa.int64())}), path, row_group_size=group)
    reader = open_reader(path, "parquet")
    windows = list(reader.windows(size, first))
    assert reader.num_rows == num_rows
    assert [row for window in windows for row in window.table["id"].to_pylist()] == list(range(num_rows))[
        first * size :
    ]
    assert [row for window in windows for row in window.rows] == list(range(1, num_rows + 1))[first * size :]
    assert all(window.table.num_rows == size for window in windows[:-1])


def test_csv_keeps_text_and_reports_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\n007,"two\nlines, quoted"\n\n2\n3,\n4,\xff\n5,last\n')
    reader = open_reader(path, "csv")
    first, second = reader.windows(3, 0)
    assert reader.num_rows == 5
    assert first.table.to_pylist() == [{"id": "007", "text": "two\nlines, quoted"}, {"id": "3", "text": None}]
    assert first.rows == [1, 3]
    assert first.bad == [(2, "row: expected 2 cells, got 1")]
    assert second.table.to_pylist() == [{"id": "5", "text": "last"}]
    assert second.bad == [(4, "row: expected UTF-8, got other bytes")]
    assert [window.rows for window in reader.windows(3, 1)] == [[5]]


@pytest.mark.parametrize("content", [b"", b"a,a\n1,2\n"])
def test_csv_header_has_different_names(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(WrongCommand, match="header"):
        open_reader(tmp_path / "a.csv", "csv")


def test_csv_with_endless_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extensions.offline.input.readers._MAX_CELL_CHARACTERS", 100)
    (tmp_path / "a.csv").write_text("a\n" + '"open' + "x" * 200)
    with pytest.raises(RunFailed, match="line"):
        open_reader(tmp_path / "a.csv", "csv")


def test_json_lines_types_hold_all_rows(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "a", "mixed": 1, "score": 1, "huge": 2**63},
        {"id": 2, "text": None, "mixed": "b", "score": 0.5, "tags": ["x", {"y": None}]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n[1]\n{\n")
    reader = open_reader(path, "jsonl")
    (window,) = reader.windows(10, 0)
    schema = window.table.schema
    assert {field.name: str(field.type) for field in schema if not is_json(field)} == {
        "id": "int64",
        "text": "string",
        "score": "double",
    }
    assert to_values(window.table, "mixed") == [1, "b"]
    assert to_values(window.table, "tags") == [None, ["x", {"y": None}]]
    assert window.table["score"].to_pylist() == [1.0, 0.5]
    assert window.rows == [1, 2]
    assert [row for row, _ in window.bad] == [3, 4]
    assert "expected a JSON object, got [1]" in window.bad[0].reason


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(WrongCommand, match="damaged"):
        open_reader(tmp_path / "a.parquet", "parquet")


def test_deeply_nested_row_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"x": {"[" * depth}1{"]" * depth}}}\n' for depth in (200, 600, 1)))
    (window,) = open_reader(path, "jsonl").windows(10, 0)
    assert window.rows == [1, 3]
    assert [(each.row, each.reason.partition(",")[0]) for each in window.bad] == [
        (2, "row: expected fewer than 250 nested arrays and objects")
    ]
