"""Counters and log lines of requests."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from app.observability.metrics import Observer, RequestRecord, request_id, server_timing
from app.observability.tallies import SECONDS_BUCKETS, Exemplar, Histogram
from app.observability.traces.traces import RequestTrace
from frameworks.core.timings import Timings


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Return the events that are logged."""
    capture = LogCapture()
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    yield capture.entries
    structlog.reset_defaults()


def record(status: int, path: str = "/infer", model: str = "m") -> RequestRecord:
    return RequestRecord("id", "POST", path, 0.0, model, "1", status, timings=Timings(0.1, 0.2, 0.3, 0.4))


def test_request_id_accepts_valid_headers_only() -> None:
    header = b"x-request-id"
    for valid in (b"a", b"A-1._:/+=", b"x" * 128):
        assert request_id([(b"host", b"x"), (header, valid)]) == valid.decode()
    made = [request_id([]), request_id([])]
    invalid = (b"", b" ", b"x" * 129, b"a b", b"\xff", b"a\n", b'"', b"{}")
    made.extend(request_id([(header, each)]) for each in invalid)
    assert request_id([(header, b"first"), (header, b"second")]) == "first"
    made.append(request_id([(header, b"b d"), (header, b"good")]))
    assert len(set(made)) == len(made)
    assert all(request_id([(header, each.encode())]) == each for each in made)


def test_histogram_bound_belongs_to_lower_bucket() -> None:
    histogram = Histogram()
    for value in (0, 0.0005, 0.00050001, 60, 61, 1e9):
        histogram.observe(value)
    assert len(histogram.counts) == len(SECONDS_BUCKETS) + 1
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 2)
    assert sum(histogram.counts) == 6
    assert histogram.total == pytest.approx(1e9 + 121.00100001)


def test_server_timing_is_in_milliseconds() -> None:
    header = server_timing(Timings(0.0011, 0.5, 1.25, 0))
    assert header == "decode;dur=1.100, queue;dur=500.000, compute;dur=1250.000, encode;dur=0.000"


def test_requests_are_counted_by_model_version_status() -> None:
    observer = Observer("none", 1000)
    for status in (200, 200, 400, 503):
        observer.record_inference(record(status), 0.1)
    assert observer.requests == {("m", "1", 200, ""): 2, ("m", "1", 400, ""): 1, ("m", "1", 503, ""): 1}
    assert observer.rejected == {("", ""): 1}
    metrics = observer.models["m", ""]
    # Only answered requests are timed: fast refusals would hide a slow model.
    assert [sum(h.counts) for h in (metrics.request_seconds, metrics.queue_seconds, metrics.compute_seconds)] == [2] * 3
    assert metrics.queue_seconds.total == pytest.approx(0.4)
    assert metrics.compute_seconds.total == pytest.approx(0.6)
    failed_later = record(200)
    failed_later.code = "model_failed"
    observer.record_inference(failed_later, 0.1)
    assert observer.requests["m", "1", 200, ""] == 3
    assert sum(metrics.request_seconds.counts) == 2
    observer.record_inference(record(200, model="other"), 0.1)
    observer.forget("m")
    assert observer.requests == {("other", "1", 200, ""): 1}
    assert observer.models.keys() == {("other", "")}


def test_exemplars_are_latest_sampled_successes() -> None:
    observer = Observer("none", 1000)
    for trace_id, is_sampled, status, total_s in (
        (1, True, 200, 0.1),
        (2, True, 200, 0.1),
        (3, False, 200, 0.1),
        (4, True, 503, 0.1),
        (5, True, 200, 100.0),
    ):
        one = record(status)
        one.trace = RequestTrace(trace_id, None, is_sampled)
        observer.record_inference(one, total_s)
    observer.record_inference(record(200), 0.1)
    metrics = observer.models["m", ""]
    shown = metrics.request_seconds.exemplars
    bounds = [SECONDS_BUCKETS.index(0.1), len(SECONDS_BUCKETS)]
    assert {index: (int(each.trace_id, 16), each.value) for index, each in shown.items()} == {
        bounds[0]: (2, 0.1),
        bounds[1]: (5, 100.0),
    }
    assert [int(each.trace_id, 16) for each in metrics.queue_seconds.exemplars.values()] == [5]
    assert [each.value for each in metrics.compute_seconds.exemplars.values()] == [0.3]


def test_merged_histogram_keeps_latest_exemplar() -> None:
    own, other = Histogram(), Histogram()
    own.show(Exemplar("b", 0.1, 2.0))
    other.show(Exemplar("a", 0.1, 1.0))
    other.show(Exemplar("c", 1.0, 1.0))
    own.merge(other)
    other.merge(own)
    assert {each.trace_id for each in own.exemplars.values()} == {"b", "c"}
    assert other.exemplars == own.exemplars


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("all", ["ok", "slow", "failed", "failed later"]),
        ("slow_and_failed", ["slow", "failed", "failed later"]),
        ("none", []),
    ],
)
def test_log_policy_selects_requests(policy: str, expected: list[str], logged: list[Any]) -> None:
    observer = Observer(policy, 1000)
    for name, status, code, total_s in (
        ("ok", 200, "", 0.999),
        ("slow", 200, "", 1.0),
        ("failed", 404, "not_found", 0.0),
        ("failed later", 200, "model_failed", 0.0),
    ):
        one = record(status)
        one.request_id, one.code = name, code
        observer.log_request(one, total_s)
        for probe in ("/health", "/health/ready", "/metrics"):
            observer.log_request(record(status, probe), total_s)
    assert [event["request_id"] for event in logged] == expected


def test_logged_request_has_durations_in_ms(logged: list[Any]) -> None:
    Observer("all", 1000).log_request(record(200), 1.0)
    (event,) = logged
    assert {name: event[f"{name}_ms"] for name in ("decode", "queue", "compute", "encode", "total")} == {
        "decode": 100, "queue": 200, "compute": 300, "encode": 400, "total": 1000,
    }  # fmt: skip
