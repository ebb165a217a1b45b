"""When tracing is on, which sampler and bounds it has, and the error without its packages."""

import sys

import pytest

from app.config import ConfigError
from app.observability.traces.export import open_queue, sampler_of_environment
from app.observability.traces.traces import RemoteParent
from app.observability.traces.tracing import check_tracing, endpoint_variable, open_tracer

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, None),
        (ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/b"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, None),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_endpoint_switches_tracing_on(environ: dict[str, str], variable: str | None) -> None:
    assert endpoint_variable(environ) == variable
    assert (open_tracer(environ) is None) == (variable is None)


def test_missing_packages_are_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "app.observability.traces.export")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"make install EXTRAS=otel"):
        check_tracing(ENDPOINT)
    check_tracing({})


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (None, (True, True, False)),
        ("always_off", (False, False, False)),
        ("parentbased_traceidratio", (False, True, False)),
    ],
)
def test_sampler_of_environment_decides(
    sampler: str | None, expected: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    if sampler is None:
        monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    else:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    is_sampled = sampler_of_environment()
    parents = (None, RemoteParent(5, 6, 1), RemoteParent(5, 6, 0))
    assert tuple(is_sampled(5, parent) for parent in parents) == expected


def test_invalid_bounds_have_defaults() -> None:
    named = {"OTEL_BSP_MAX_QUEUE_SIZE": "many", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "0", "OTEL_BSP_SCHEDULE_DELAY": "7"}
    bounds = open_queue(named)._bounds
    assert (bounds.max_requests, bounds.max_batch, bounds.delay_s) == (2048, 512, 0.007)
