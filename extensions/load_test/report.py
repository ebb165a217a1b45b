"""Shape the result of a run: a JSON object, its warnings, and the lines of a summary."""

from typing import Any

from extensions.load_test.results.histogram import DurationHistogram
from extensions.load_test.results.tally import Tally
from extensions.load_test.run import LoadPlan, LoadRun
from extensions.load_test.target import LoadTarget

MAX_CPU_PART = 0.9
"""From this part of a core on, the load generator may have been the limit."""
MAX_LATENESS_PART = 0.1
"""Mean lateness of its timers, as a part of the mean latency, from which on it may have been the limit."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


def limits(tally: Tally, cpu_part: float) -> list[str]:
    """Return the reasons for which the load generator itself may have been the limit."""
    found = []
    if cpu_part >= MAX_CPU_PART:
        found.append(f"the load generator used {cpu_part:.0%} of a core")
    late_s, latency_s = tally.lateness.mean_s, tally.latency.mean_s
    if tally.latency.count and late_s > MAX_LATENESS_PART * latency_s:
        found.append(f"its timers were {late_s * 1e3:.2f} ms late, which is {late_s / latency_s:.0%} of the latency")
    return found


def result(run: LoadRun, plan: LoadPlan, target: LoadTarget, cpu_part: float, started: str) -> dict[str, Any]:
    """Return everything that was measured. Durations are in milliseconds unless the name says otherwise."""
    tally = run.tally
    reasons = limits(tally, cpu_part)
    is_open = plan.rate is not None
    return {
        "tool": "roundhouse bench",
        "started": started,
        "target": {
            "url": _url(target),
            "protocol": target.protocol,
            "model": target.model,
            "path": target.path,
            "encoding": target.encoding,
        },
        "load": {
            "loop": "open" if is_open else "closed",
            "rate_per_s": plan.rate,
            "arrivals": ("poisson" if plan.is_poisson else "steady") if is_open else None,
            "concurrency": plan.concurrency,
            "max_connections": plan.connections if is_open else plan.concurrency,
            "duration_s": plan.duration_s,
            "requests": plan.requests,
            "warmup_s": plan.warmup_s,
            "timeout_s": plan.timeout_s,
        },
        "ended_by": run.ended_by,
        "elapsed_s": round(tally.elapsed_s, 3),
        "requests": {
            "sent": run.sent,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "unanswered": run.unanswered,
            "not_sent": tally.not_sent,
        },
        "throughput_per_s": round(tally.per_second, 3),
        "latency_ms": durations(tally.latency),
        "time_to_first_token_ms": durations(tally.first_token),
        "time_per_token_ms": durations(tally.per_token),
        "tokens": {"generated": tally.tokens, "per_s": round(tally.tokens_per_second, 3)},
        "failures": [
            {"status": kind[0], "code": kind[1], "count": count, "message": tally.messages.get(kind, "")}
            for kind, count in tally.failures.most_common()
        ],
        "server_timing_ms": {name: durations(timing) for name, timing in tally.server_timings.items()},
        "connections": {
            "opened": run.connections.opened,
            "closed_by_server": run.connections.closed_by_server,
            "failed": run.connections.failed,
        },
        "load_generator": {
            "cpu_part_of_a_core": round(cpu_part, 3),
            "timer_lateness_ms": durations(tally.lateness),
            "is_limit": bool(reasons),
        },
        "course": [
            {
                "after_s": round(index * tally.course.interval_s, 3),
                "succeeded": point.succeeded,
                "failed": point.failed,
                "p50_ms": _ms(point.latency.quantile(0.5)),
                "p95_ms": _ms(point.latency.quantile(0.95)),
                "p99_ms": _ms(point.latency.quantile(0.99)),
            }
            for index, point in enumerate(tally.course.points)
        ],
        "course_interval_s": tally.course.interval_s,
        "latency_histogram": [
            {"from_ms": _ms(lower_s), "to_ms": _ms(upper_s), "count": count}
            for lower_s, upper_s, count in tally.latency.buckets()
        ],
        "warnings": warnings(run, reasons),
    }


def warnings(run: LoadRun, reasons: list[str]) -> list[str]:
    """Return the sentences that a reader of the figures has to know."""
    tally = run.tally
    found = []
    if reasons:
        found.append(
            f"The load generator may have been the limit: {', and '.join(reasons)}. The server may be faster; "
            "run the load on a faster or less busy machine, or with less load."
        )
    if tally.not_sent:
        found.append(
            f"{tally.not_sent:,} planned requests were not sent: no connection was free. The server is slower than the "
            "rate, and the latencies are too small."
        )
    if timed_out := sum(count for (_, code), count in tally.failures.items() if code == "timeout"):
        found.append(f"{timed_out:,} requests timed out. Their latency is not part of the percentiles.")
    if lost := tally.failures[0, "connection_failed"]:
        found.append(f"{lost:,} requests had no connection. The server has ended, or it refuses connections.")
    if tally.failed:
        found.append(f"{tally.failed:,} of {tally.failed + tally.succeeded:,} requests failed.")
    if not tally.succeeded:
        found.append("No request succeeded.")
    return found


def durations(histogram: DurationHistogram) -> dict[str, float | int] | None:
    """Return mean, extremes and quantiles in milliseconds; None without a value."""
    if not histogram.count:
        return None
    values: dict[str, float | int] = {"count": histogram.count, "mean": _ms(histogram.mean_s)}
    values |= {name: _ms(histogram.quantile(part)) for name, part in QUANTILES.items()}
    return values | {"min": _ms(histogram.min_s), "max": _ms(histogram.max_s)}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def _url(target: LoadTarget) -> str:
    scheme = "http" if target.address.tls is None else "https"
    return f"{scheme}://{target.address.authority}{target.address.prefix}"
