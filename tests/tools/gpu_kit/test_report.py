"""The report of the kit, and the list of its tests."""

import json
from pathlib import Path

from tools.bench.shared.table import Row
from tools.gpu_kit.measure import Report

MACHINE = {"gpu": "X", "torch": "2"}


def read(folder: Path) -> dict[str, dict[str, object]]:
    parts: dict[str, dict[str, object]] = json.loads((folder / "results.json").read_text())["parts"]
    return parts


def test_parts_of_one_machine_are_kept(tmp_path: Path) -> None:
    for part in ("texts", "memory", "texts"):
        report = Report(tmp_path, MACHINE)
        report.begin(part, "cuda")
        report.add(part, Row(f"{part} row", "1 s"))
        report.end(part, 2.04, None)
    assert {name: len(part["rows"]) for name, part in read(tmp_path).items()} == {"texts": 1, "memory": 1}  # type: ignore[arg-type]
    assert read(tmp_path)["texts"]["seconds"] == 2.0
    assert "| memory row | 1 s | - | - |" in (tmp_path / "results.md").read_text()


def test_report_of_another_machine_replaced(tmp_path: Path) -> None:
    Report(tmp_path, MACHINE).begin("texts", "cuda")
    Report(tmp_path, MACHINE | {"gpu": "Y"}).begin("memory", "cuda")
    assert list(read(tmp_path)) == ["memory"]


def test_part_that_was_killed_is_not_finished(tmp_path: Path) -> None:
    report = Report(tmp_path, MACHINE)
    report.begin("texts", "cuda")
    report.add("texts", Row("speed", "3 texts/s"))
    assert read(tmp_path)["texts"]["error"] == "not finished"
    assert "texts: not finished" in (tmp_path / "results.md").read_text()
