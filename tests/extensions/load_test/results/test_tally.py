"""Totals of outcomes, and what they become in the reports."""

import math

import pytest

from extensions.load_test.report import limits
from extensions.load_test.results.page import html_page
from extensions.load_test.results.plots import log_ticks, ticks
from extensions.load_test.results.tally import MAX_POINTS, Course, Outcome, Tally


def tally() -> Tally:
    return Tally(10.0, lambda: 0.0)


def test_latency_counts_from_planned_time() -> None:
    totals = tally()
    totals.record(Outcome(10.0, 12.0, 200))
    assert totals.latency.max_s == 2.0
    assert totals.per_second == 0.5


def test_request_planned_in_warmup_is_ignored() -> None:
    totals = tally()
    totals.record(Outcome(9.9, 12.0, 200))
    totals.record(Outcome(9.9, 12.0, 0, "timeout"))
    assert (totals.succeeded, totals.failed) == (0, 0)


def test_failures_are_counted_by_kind() -> None:
    totals = tally()
    for number in range(1000):
        totals.record(Outcome(10.0, 11.0, 503, "overloaded" if number % 2 else f"made-up-{number}"))
    assert totals.failures[503, "overloaded"] == 500
    assert totals.failures.total() == totals.failed == 1000
    assert len(totals.failures) <= 51
    assert totals.latency.count == 0


def test_server_timings_are_bounded() -> None:
    totals = tally()
    totals.record(Outcome(10.0, 11.0, 200, "", "decode;dur=1.5, queue;dur=nan, x;dur=-1, cpu, compute; dur=20"))
    assert {name: timing.max_s for name, timing in totals.server_timings.items()} == {"decode": 0.0015, "compute": 0.02}
    for number in range(100):
        totals.record(Outcome(10.0, 11.0, 200, "", f"t{number};dur=1"))
    assert len(totals.server_timings) == 12


def test_tokens_after_first_have_mean_time() -> None:
    totals = tally()
    totals.record(Outcome(10.0, 15.0, 200, "", "", first_token_s=11.0, last_token_s=14.0, tokens=4))
    assert (totals.first_token.max_s, totals.per_token.max_s, totals.tokens) == (1.0, 1.0, 4)


def test_course_is_bounded_and_complete() -> None:
    course = Course()
    for number in range(100_000):
        course.at(number * 0.1).succeeded += 1
    assert len(course.points) <= MAX_POINTS
    assert sum(point.succeeded for point in course.points) == 100_000
    # Each interval holds the requests of its own time.
    for point in course.points[:-1]:
        assert abs(point.succeeded - course.interval_s * 10) <= 1


def test_busy_or_late_load_generator_is_limit() -> None:
    totals = tally()
    totals.record(Outcome(10.0, 10.010, 200))
    totals.lateness.record(0.0005)
    assert limits(totals, 0.5) == []
    assert limits(totals, 0.95) == ["the load generator used 95% of a core"]
    totals.lateness.record(0.010)
    assert len(limits(totals, 0.5)) == 1


def test_first_message_of_failure_is_kept() -> None:
    totals = tally()
    for number in range(60):
        totals.record(Outcome(10.0, 11.0, 400, "a", message=f"first {number}"))
        totals.record(Outcome(10.0, 11.0, 400, f"kind-{number}", message=str(number)))
    assert totals.messages[400, "a"] == "first 0"
    # Both are bounded: further kinds are counted together.
    assert totals.failures[0, "other"] == 11
    assert totals.failures.keys() == totals.messages.keys()


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (0, [0, 1]),
        (float("inf"), [0, 1]),
        (1, [0, 0.25, 0.5, 0.75, 1]),
        (28, [0, 10, 20, 30]),
        (8.1, [0, 2.5, 5, 7.5, 10]),
        (400, [0, 100, 200, 300, 400]),
    ],
)
def test_axis_has_round_values(largest: float, expected: list[float]) -> None:
    assert ticks(largest) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (34.6, 408, [50, 100, 200]),
        (10.1, 10.4, [10.1, 10.4]),
        (0.02, 30, [0.1, 1, 10]),
        (1e-4, 1e8, [1e-4, 1e-2, 1, 100, 1e4, 1e6, 1e8]),
    ],
)
def test_log_axis_has_round_values(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(math.log10(low), math.log10(high)) == pytest.approx(expected)


def test_page_escapes_every_text() -> None:
    evil = "<script>alert('&\"')</script>"
    duration = {"count": 1, "mean": 1.0, "min": 1.0, "max": 1.0} | dict.fromkeys(
        ("p50", "p90", "p95", "p99", "p99_9"), 1.0
    )
    page = html_page(
        {
            "started": evil,
            "target": {"url": evil, "protocol": evil, "model": evil, "path": evil, "encoding": evil},
            "load": {"loop": "open", "rate_per_s": 1.0, "arrivals": evil},
            "ended_by": evil,
            "elapsed_s": 1.0,
            "requests": {"succeeded": 1, "failed": 1, "not_sent": 1},
            "throughput_per_s": 1.0,
            "latency_ms": duration,
            "time_to_first_token_ms": None,
            "time_per_token_ms": None,
            "tokens": {"generated": 1, "per_s": 1.0},
            "failures": [{"status": 0, "code": evil, "count": 1, "message": evil}],
            "server_timing_ms": {evil: duration},
            "connections": {"opened": 1},
            "load_generator": {"cpu_part_of_a_core": 0.1, "timer_lateness_ms": None, "is_limit": False},
            "course": [
                {"after_s": 0.0, "succeeded": 1, "failed": 1, "p50_ms": 1.0, "p95_ms": 1.0, "p99_ms": 1.0},
            ],
            "course_interval_s": 0.25,
            "latency_histogram": [{"from_ms": 0.99, "to_ms": 1.01, "count": 1}],
            "warnings": [evil],
        }
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 13
    # No other resource is loaded.
    assert "http:" not in page
    assert "src=" not in page
