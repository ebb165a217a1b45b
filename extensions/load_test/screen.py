"""Show a run while it is in progress: a table that is redrawn in a terminal, else a line now and then."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TextIO

from app.cli.failures import printable
from extensions.load_test.report import limits
from extensions.load_test.results.histogram import DurationHistogram
from extensions.load_test.run import LoadPlan, LoadRun
from extensions.load_test.target import LoadTarget

REDRAW_S = 0.5
LINE_S = 5.0

_COLUMNS = ("", "p50", "p95", "p99", "max", "mean")
_MAX_FAILURES_SHOWN = 5
_BAR_WIDTH = 30
_UP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"
_HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def table(run: LoadRun, plan: LoadPlan, target: LoadTarget, now_s: float) -> list[str]:
    """Return the lines of the table."""
    tally = run.tally
    # While it runs, the time without a response counts.
    elapsed_s = max(1e-9, tally.elapsed_s if run.ended_by else now_s - tally.start_s)
    load = f"{plan.rate:g} requests/s" if plan.rate is not None else f"{plan.concurrency} callers"
    form = " binary" if target.encoding == "binary" else ""
    lines = [
        f"{printable(target.model)}  {target.protocol}{form} {printable(target.path)}  {load}",
        _progress(run, plan, now_s),
        "",
        f"{'throughput':<20}{tally.succeeded / elapsed_s:>12,.1f} requests/s",
    ]
    if tally.tokens:
        lines.append(f"{'tokens':<20}{tally.tokens / elapsed_s:>12,.1f} tokens/s")
    lines += [
        f"{'requests':<20}{tally.succeeded:>12,} succeeded  {tally.failed:,} failed  {run.in_flight:,} in flight"
        + (f"  {run.backlog:,} waiting" if run.backlog else "")
        + (f"  {run.unanswered:,} unanswered" if run.unanswered else "")
        + (f"  {tally.not_sent:,} not sent" if tally.not_sent else ""),
        "",
        f"{'milliseconds':<20}" + "".join(f"{name:>10}" for name in _COLUMNS[1:]),
        _row("latency", tally.latency),
    ]
    if tally.first_token.count:
        lines += [_row("first token", tally.first_token), _row("per token", tally.per_token)]
    lines += [_row(f"server: {name}", timing) for name, timing in tally.server_timings.items() if timing.max_s]
    if tally.failures:
        lines += ["", *_failures(run)]
    cpu_part = tally.cpu_part(now_s)
    lines += [
        "",
        f"load generator: {cpu_part:.0%} of a core, timers {tally.lateness.mean_s * 1e3:.2f} ms late",
    ]
    if limits(tally, cpu_part):
        lines.append("! the load generator may be the limit")
    return lines


def line(run: LoadRun, now_s: float) -> str:
    """Return one line for logs."""
    tally = run.tally
    latency = tally.latency
    words = [
        f"{max(0.0, now_s - tally.start_s):.0f} s",
        f"{tally.per_second:.1f} requests/s",
        f"p50 {latency.quantile(0.5) * 1e3:.2f} ms",
        f"p95 {latency.quantile(0.95) * 1e3:.2f} ms",
        f"p99 {latency.quantile(0.99) * 1e3:.2f} ms",
    ]
    if tally.first_token.count:
        words.append(f"first token p50 {tally.first_token.quantile(0.5) * 1e3:.2f} ms")
        words.append(f"{tally.tokens_per_second:.1f} tokens/s")
    words.append(f"{tally.failed} failed")
    return ", ".join(words)


async def show(run: LoadRun, stream: TextIO, lines: Callable[[], list[str]]) -> None:
    """Show the run until this is cancelled. `lines`: the table as it is now. Raises OSError if nothing can be shown."""
    if not stream.isatty():
        while True:
            await asyncio.sleep(LINE_S)
            print(line(run, time.monotonic()), file=stream, flush=True)
    height = 0
    stream.write(_HIDE_CURSOR)
    try:
        while True:
            height = draw(stream, lines(), height)
            await asyncio.sleep(REDRAW_S)
    finally:
        # The last table is complete: it may scroll, and long lines may wrap.
        _write(stream, lines(), height)
        stream.write(SHOW_CURSOR)
        stream.flush()


def draw(stream: TextIO, lines: list[str], height: int) -> int:
    """Write the lines over the `height` lines of the last table. Returns the new height."""
    size = os.get_terminal_size(stream.fileno())
    # Longer lines would wrap, more of them would scroll: the cursor could not return to the first.
    columns, rows = size.columns or 80, size.lines or 24
    shown = [each[: max(1, columns - 1)] for each in lines[: max(1, rows - 1)]]
    _write(stream, shown, height)
    return len(shown)


def _write(stream: TextIO, lines: list[str], height: int) -> None:
    text = "".join(f"{each}{_CLEAR_LINE}\n" for each in lines)
    stream.write((_UP.format(height) if height else "") + "\r" + text + _CLEAR_BELOW)
    stream.flush()


def _progress(run: LoadRun, plan: LoadPlan, now_s: float) -> str:
    tally = run.tally
    after_s = now_s - tally.start_s
    if after_s < 0:
        return f"warm-up, {-after_s:.1f} s left"
    parts = []
    if plan.duration_s is not None:
        parts.append((after_s / plan.duration_s, f"{min(after_s, plan.duration_s):.1f} of {plan.duration_s:g} s"))
    if plan.requests is not None:
        count = tally.succeeded + tally.failed
        parts.append((count / plan.requests, f"{count:,} of {plan.requests:,} requests"))
    part, words = max(parts, default=(0.0, f"{after_s:.1f} s"))
    filled = min(_BAR_WIDTH, int(part * _BAR_WIDTH))
    ended = f"  ended by {run.ended_by}" if run.ended_by else ""
    if run.ended_by and run.in_flight:
        ended += ", waiting for responses"
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {words}{ended}"


def _row(name: str, histogram: DurationHistogram) -> str:
    if not histogram.count:
        return f"{name:<20}" + f"{'-':>10}" * 5
    values = [histogram.quantile(0.5), histogram.quantile(0.95), histogram.quantile(0.99), histogram.max_s]
    return f"{name[:19]:<20}" + "".join(f"{value * 1e3:>10,.2f}" for value in (*values, histogram.mean_s))


def _failures(run: LoadRun) -> list[str]:
    kinds = run.tally.failures.most_common()
    lines = [
        f"{'failures' if not index else '':<20}{count:>12,} {kind[0] or '-'} {kind[1]}{_first_message(run, kind)}"
        for index, (kind, count) in enumerate(kinds[:_MAX_FAILURES_SHOWN])
    ]
    if len(kinds) > _MAX_FAILURES_SHOWN:
        lines.append(f"{'':<20}{'':>12} and {len(kinds) - _MAX_FAILURES_SHOWN} more kinds")
    return lines


def _first_message(run: LoadRun, kind: tuple[int, str]) -> str:
    message = run.tally.messages.get(kind)
    return f": {message}" if message else ""
