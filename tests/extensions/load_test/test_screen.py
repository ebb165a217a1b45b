"""The live table in terminals of any size, and lines elsewhere."""

import asyncio
import io
import os
import time
from contextlib import suppress

import pytest

from extensions.load_test import screen
from extensions.load_test.arrivals import Timer
from extensions.load_test.results.tally import Outcome
from extensions.load_test.run import LoadPlan, LoadRun
from tests.extensions.load_test.test_run import run_of, target_at


class Terminal(io.StringIO):
    """A terminal of 40 columns and 6 lines."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 6)))
    return Terminal()


PLAN = LoadPlan(rate=5.0, concurrency=None, duration_s=10.0, requests=50)


def run_with_outcomes() -> LoadRun:
    run = run_of(PLAN, port=1)
    start_s = run.tally.start_s
    run.tally.record(Outcome(start_s, start_s + 0.01, 200, "", "queue;dur=2", start_s + 0.005, start_s + 0.009, 5))
    for number in range(9):
        run.tally.record(Outcome(start_s, start_s + 0.5, 503, f"code-{number}"))
    return run


def table_of(run: LoadRun) -> str:
    return "\n".join(screen.table(run, PLAN, target_at(1), run.tally.start_s + 1))


def test_table_has_every_result() -> None:
    text = table_of(run_with_outcomes())
    for words in ("1 succeeded  9 failed", "latency", "first token", "tokens/s", "server: queue", "503 code-0"):
        assert words in text
    assert "and 4 more kinds" in text
    assert "10 of 50 requests" in text


def test_table_names_limit_of_generator() -> None:
    run = run_with_outcomes()
    run.tally.lateness.record(0.005)
    assert "! the load generator may be the limit" in table_of(run)


def test_redrawn_table_fits_terminal(terminal: Terminal) -> None:
    height = screen.draw(terminal, ["x" * 100] * 20, 0)
    assert height == 5
    assert max(line.count("x") for line in terminal.getvalue().splitlines()) == 39
    screen.draw(terminal, ["y"], height)
    # The second table begins where the first did, and what is below it is cleared.
    assert terminal.getvalue().split("\x1b[5A\r")[1] == "y\x1b[K\n\x1b[J"


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `show` has written when it is cancelled."""
    monkeypatch.setattr(screen, "LINE_S", 0.01)
    run = run_with_outcomes()

    async def show() -> None:
        task = asyncio.create_task(screen.show(run, stream, lambda: table_of(run).splitlines()))
        while not stream.getvalue():  # noqa: ASYNC110 - no event is set by a stream
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(show())
    return stream.getvalue()


def test_last_table_is_complete(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(terminal, monkeypatch)
    assert text.startswith("\x1b[?25l")
    assert text.endswith("\x1b[?25h")
    assert text.count("\n") == 5 + table_of(run_with_outcomes()).count("\n") + 1


def test_plain_lines_without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown(io.StringIO(), monkeypatch).splitlines()[0]
    assert "\x1b" not in first
    assert "requests/s" in first
    assert "9 failed" in first


def test_timer_calls_after_set_time_only() -> None:
    called_s = []

    async def wait() -> None:
        called = asyncio.Event()

        def call() -> None:
            called_s.append(time.monotonic())
            called.set()

        timer = Timer(asyncio.get_running_loop(), call)
        timer.set(time.monotonic() + 3600)
        at_s = time.monotonic() + 0.02
        timer.set(at_s)
        await called.wait()
        assert called_s[0] >= at_s
        called.clear()
        timer.set(0.0)
        await called.wait()
        timer.set(time.monotonic() + 0.01)
        timer.close()
        await asyncio.sleep(0.03)

    asyncio.run(wait())
    assert len(called_s) == 2
