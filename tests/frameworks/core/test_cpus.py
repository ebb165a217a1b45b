"""The CPUs of this process, and lists of CPUs."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.cpus import format_cpus, parse_cpus, usable_cpus
from frameworks.core.settings.performance import PerformanceSettings

cpus = st.frozensets(st.integers(0, 300), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000", 2),
        ("1 100000", 1),
        ("9999999 100000", 8),
        ("junk", 8),
        ("1 0", 8),
        (None, 8),
    ],
)
def test_usable_cpus_respects_affinity_and_quota(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota, encoding="ascii")
    assert usable_cpus(tmp_path / "cpu.max") == expected


def test_usable_cpus_without_affinity_counts_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(tmp_path) == 1
    assert PerformanceSettings(intra_op_threads=3).num_intra_op_threads() == 3
    assert PerformanceSettings().num_intra_op_threads() >= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", {0}), ("4-7", {4, 5, 6, 7}), ("0,2-3", {0, 2, 3}), ("3,3,2-3", {2, 3}), ("5-5", {5}), ("007", {7})],
)
def test_list_of_cpus_has_both_ends_of_ranges(text: str, expected: set[int]) -> None:
    assert parse_cpus(text) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "a", "-1", "1-", "7-4", "1 ", " 1", "1, 2", "1.5", "1-2-3", "12345", "\u0661", "0\n"]
)
def test_invalid_list_of_cpus_refused(text: str) -> None:
    with pytest.raises(ValueError, match='expected numbers of CPUs and ranges, like "4-7"'):
        parse_cpus(text)


def test_long_list_of_cpus_refused() -> None:
    assert parse_cpus("0," * 127 + "0") == {0}
    with pytest.raises(ValueError, match="expected numbers"):
        parse_cpus("0," * 128 + "0")


@given(cpus)
def test_formatted_list_of_cpus_is_parsed(numbers: frozenset[int]) -> None:
    text = format_cpus(numbers)
    assert parse_cpus(text) == numbers
    # The ranges are as long as they can be.
    firsts = {int(item.split("-")[0]) for item in text.split(",")}
    assert firsts == {cpu for cpu in numbers if cpu - 1 not in numbers}
