"""Test the statistics of each version: requests and batches."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin.open_inference.management import version_statistics, versions_with_statistics
from app.auth.principal import ANONYMOUS
from app.observability.metrics import Observer, RequestRecord
from app.observability.visible_counts import Counts
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.timings import Timings
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.batch.batcher import BatchLimits
from tests.app.protocols.open_inference.messages import as_message, check_message

PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


NOW_S = 50.0
"""time.perf_counter at the end of each request."""


def slot_at(path: Path) -> ModelSlot:
    entry = OnnxModelEntry(name="m", path=path)
    return ModelSlot(ModelIdentity("onnx", entry, BatchLimits(max_rows=8), ageing_s=1.0), path)


def complete(observer: Observer, total_s: float, timings: Timings, status: int = 200, version: str = "1") -> None:
    observer.record_inference(
        RequestRecord("id", "POST", "/", NOW_S - total_s, "m", version, status, "", timings), total_s
    )


def test_statistics_of_unused_version_are_zero(tmp_path: Path) -> None:
    slot = slot_at(tmp_path)
    statistics = version_statistics(slot, slot.active, Counts(Observer("none", 1000), ANONYMOUS))
    assert statistics["inference_stats"] == {part: {"count": 0, "ns": 0} for part in PARTS}
    assert (statistics["last_inference"], statistics["inference_count"], statistics["execution_count"]) == (0, 0, 0)
    assert (statistics["batch_stats"], statistics["memory_usage"]) == ([], [])
    check_message("ModelStatisticsResponse", {"model_stats": [statistics]})


def test_requests_are_counted_by_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SimpleNamespace(time=lambda: 1_000_000.0, perf_counter=lambda: NOW_S + 1)
    monkeypatch.setattr("app.admin.open_inference.management.time", clocks)
    slot, observer = slot_at(tmp_path), Observer("none", 1000)
    complete(observer, 1.0, Timings(0.1, 0.2, 0.3, 0.4))
    complete(observer, 2.0, Timings(0.1, 0.0, 0.5, 0.1, cache_hit=False))
    complete(observer, 0.5, Timings(0.1, 0.0, 0.0, 0.2, cache_hit=True))
    complete(observer, 0.25, Timings(0.1), status=400)
    complete(observer, 0.25, Timings(0.1), status=503)
    statistics = version_statistics(slot, slot.active, Counts(observer, ANONYMOUS))
    seconds = {part: (each["count"], each["ns"] / 1e9) for part, each in statistics["inference_stats"].items()}
    assert seconds == {
        "success": (3, pytest.approx(3.5)),
        "fail": (2, pytest.approx(0.5)),
        "queue": (3, pytest.approx(0.2)),
        "compute_input": (2, pytest.approx(0.2)),
        "compute_infer": (2, pytest.approx(0.8)),
        "compute_output": (2, pytest.approx(0.5)),
        "cache_hit": (1, pytest.approx(0.2)),
        "cache_miss": (1, 0.0),
    }
    # The last request ended 1 s ago and took 0.25 s.
    assert statistics["last_inference"] == 999_998_750
    check_message("ModelStatisticsResponse", {"model_stats": [statistics]})


def test_aborted_response_fails_and_unknown_version_is_ignored(tmp_path: Path) -> None:
    slot, observer = slot_at(tmp_path), Observer("none", 1000)
    aborted = RequestRecord("id", "POST", "/", 0.0, "m", "1", 200, "model_failed")
    observer.record_inference(aborted, 0.5)
    complete(observer, 0.1, Timings(), status=404)
    observer.record_inference(RequestRecord("id", "POST", "/", 0.0, status=404), 0.1)
    assert observer.versions.keys() == {("m", "1", "")}
    statistics = version_statistics(slot, slot.active, Counts(observer, ANONYMOUS))["inference_stats"]
    assert (statistics["success"]["count"], statistics["fail"]) == (0, {"count": 1, "ns": 500_000_000})
    observer.forget("m")
    assert observer.versions == {}


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1))))
def test_batches_are_counted_by_size(ran: list[tuple[int, float]]) -> None:
    slot = slot_at(Path("files"))
    for rows, seconds in ran:
        slot.identity.runs["1"].batches.ran(rows, seconds)
    statistics = version_statistics(slot, slot.active, Counts(Observer("none", 1000), ANONYMOUS))
    assert statistics["inference_count"] == sum(rows for rows, _ in ran)
    assert statistics["execution_count"] == len(ran)
    assert [each["batch_size"] for each in statistics["batch_stats"]] == sorted({rows for rows, _ in ran})
    for each in statistics["batch_stats"]:
        counts = {each[part]["count"] for part in ("compute_input", "compute_infer", "compute_output")}
        assert counts == {sum(rows == each["batch_size"] for rows, _ in ran)}
    computed_s = sum(each["compute_infer"]["ns"] for each in statistics["batch_stats"]) / 1e9
    assert computed_s == pytest.approx(sum(seconds for _, seconds in ran), abs=1e-6)
    check_message("ModelStatisticsResponse", {"model_stats": [statistics]})


def test_generate_model_counts_steps_and_texts() -> None:
    slot = slot_at(Path("files"))
    generated = slot.identity.runs["1"].generated
    for sequences in (1, 2, 2, 1):
        generated.steps.ran(sequences, 0.5)
    generated.texts = 2
    statistics = version_statistics(slot, slot.active, Counts(Observer("none", 1000), ANONYMOUS))
    assert (statistics["inference_count"], statistics["execution_count"]) == (2, 4)
    (one, two) = as_message("ModelStatisticsResponse", {"model_stats": [statistics]}).model_stats[0].batch_stats
    assert (one.batch_size, one.compute_infer.count, one.compute_infer.ns) == (1, 2, 10**9)
    assert (two.batch_size, two.compute_infer.count) == (2, 2)


def test_versions_with_statistics_are_active_or_used(tmp_path: Path) -> None:
    for version in ("1", "2", "3", "4"):
        (tmp_path / version).mkdir()
    slot, observer = slot_at(tmp_path), Observer("none", 1000)
    complete(observer, 0.1, Timings(), version="1")
    slot.identity.runs["3"].batches.ran(1, 0.1)
    counts = Counts(observer, ANONYMOUS)
    assert [version.version for version in versions_with_statistics(slot, counts)] == [
        "1",
        "3",
        "4",
    ]
    assert version_statistics(slot, slot.versions["1"], counts)["inference_stats"]["success"]["count"] == 1
    assert version_statistics(slot, slot.versions["4"], counts)["inference_stats"]["success"]["count"] == 0
    assert version_statistics(slot, slot.versions["3"], counts)["execution_count"] == 1
