"""The format of /metrics that a client asks for, and pages in OpenMetrics."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from app.admin.metrics.families import counter, histogram, time_histogram
from app.admin.metrics.formats import metrics_page, wants_open_metrics
from app.observability.tallies import ModelMetrics
from frameworks.core.timings import Timings

OPEN = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def counted() -> Iterator[Any]:
    """Yield families of a model: a sampled request of 0.02 s, whose run took 0.004 s, and one of 7 s."""
    metrics = ModelMetrics()
    timings = Timings(compute_s=0.004)
    metrics.observe(0.02, timings)
    metrics.show("ab" * 16, 0.02, timings)
    metrics.observe(7.0, Timings())
    times = [(["m"], metrics.request_seconds)]
    yield counter("requests", "Completed.", ["model"], [(["m"], 2)])
    yield time_histogram("request_seconds", "Time.", ["model"], times)
    yield time_histogram("compute_seconds", "Run.", ["model"], [(["m"], metrics.compute_seconds)])
    yield histogram("batch_size", "Rows.", ["model"], [(["m"], [("1", 1.0), ("+Inf", 2.0)], 9.0)])


def samples(page: bytes) -> dict[tuple[str, str], Any]:
    """Return the samples of an OpenMetrics page by name and bucket."""
    families = open_metrics_families(page.decode())  # type: ignore[no-untyped-call]
    return {(each.name, each.labels.get("le", "")): each for family in families for each in family.samples}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([], False),
        (["*/*"], False),
        (["text/plain"], False),
        (["application/*"], False),
        ([OPEN], True),
        (["Application/OpenMetrics-Text"], True),
        (["text/plain;q=0.5", OPEN], True),
        ([PROMETHEUS_2], True),
        ([PROMETHEUS_3], True),
        ([f"text/plain, {OPEN};q=0.9"], False),
        ([f"{OPEN};q=0.2, */*;q=0.8"], False),
        ([f"{OPEN};q=0"], False),
        ([f"{OPEN};q=high"], False),
        (["application/openmetrics-text;version=0.0.1"], False),
        (["application/openmetrics-text;version=2.0.0"], False),
        ([";,=;q==,\t;version"], False),
    ],
)
def test_accept_header_selects_format(accept: list[str], expected: bool) -> None:
    assert wants_open_metrics(accept) is expected


def test_open_metrics_page_has_exemplars() -> None:
    page = metrics_page(counted(), [OPEN])
    assert page.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert page.content.endswith(b"\n# EOF\n")
    found = samples(page.content)
    for name, bound, value in (("request", "0.025", 0.02), ("compute", "0.005", 0.004)):
        exemplar = found[f"roundhouse_{name}_seconds_bucket", bound].exemplar
        assert (exemplar.labels, exemplar.value) == ({"trace_id": "ab" * 16}, value)
        assert float(exemplar.timestamp) > 1e9
    assert [key for key, each in found.items() if each.exemplar] == [
        ("roundhouse_request_seconds_bucket", "0.025"),
        ("roundhouse_compute_seconds_bucket", "0.005"),
    ]


def test_both_formats_have_equal_samples() -> None:
    plain, found = metrics_page(counted(), []), samples(metrics_page(counted(), [OPEN]).content)
    assert plain.content_type.startswith("text/plain; version=")
    assert b"trace_id" not in plain.content
    assert b"EOF" not in plain.content
    expected = {
        (each.name, str(float(each.labels["le"])).replace("inf", "+Inf") if "le" in each.labels else ""): each.value
        for family in text_string_to_metric_families(plain.content.decode())
        for each in family.samples
    }
    assert {key: each.value for key, each in found.items()} == expected
    assert b'roundhouse_batch_size_bucket{le="1",model="m"} 1.0\n' in plain.content
