"""Switch tracing on by OpenTelemetry's environment variables. Its packages are imported only then."""

from collections.abc import Mapping

from app.config import ConfigError, ConfigIssue
from app.observability.traces.traces import Tracer
from frameworks.core.extras import install_command

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# How long the end of a process waits for the collector, within the drain time.
_MAX_FLUSH_S = 3.0


def endpoint_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that switches tracing on; None if it is off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    return next((name for name in _ENDPOINTS if environ.get(name, "").strip()), None)


def check_tracing(environ: Mapping[str, str]) -> None:
    """Import what tracing needs, if it is on. Raises ConfigError if that is not installed."""
    variable = endpoint_variable(environ)
    if variable is None:
        return
    try:
        import app.observability.traces.export  # noqa: F401
    except ModuleNotFoundError as error:
        message = f"tracing: expected the extra otel, got none; {install_command('otel')}"
        raise ConfigError([ConfigIssue(variable, None, "", message, "invalid")]) from error


def open_tracer(environ: Mapping[str, str]) -> Tracer | None:
    """Return the tracer of this process; None if tracing is off. Raises ConfigError."""
    variable = endpoint_variable(environ)
    if variable is None:
        return None
    check_tracing(environ)
    from app.observability.traces.export import open_queue, sampler_of_environment

    queue = open_queue(environ)
    return Tracer(sampler_of_environment(), queue)


def close_tracer(tracer: Tracer | None, drain_left_s: float) -> None:
    """Export what is left, at the end of the process. Blocks, at most for the rest of the drain time."""
    if tracer is not None:
        tracer.ended.close(min(_MAX_FLUSH_S, drain_left_s))
