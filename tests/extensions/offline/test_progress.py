"""The progress of a run on a terminal and in a log."""

import io

import pytest

from app.observability.logs.progress_bars import format_seconds
from extensions.offline.progress import RunProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_shows_rate_and_time_left() -> None:
    now_s = 0.0
    stream = Terminal()
    progress = RunProgress(1000, 200, stream, lambda: now_s)
    now_s = 4.0
    progress.add(300)
    assert stream.getvalue() == f"\r{'█' * 15}{'░' * 15} 500 of 1,000 rows, 50%, 75 rows/s, 7s left\x1b[K"
    progress.close()
    assert stream.getvalue().endswith("\n")


def test_log_gets_line_every_ten_seconds() -> None:
    now_s = 0.0
    stream = io.StringIO()
    progress = RunProgress(100, 0, stream, lambda: now_s)
    for now_s in range(1, 26):  # noqa: B007 - the clock reads it
        progress.add(1)
    assert stream.getvalue().splitlines() == [
        "10 of 100 rows, 10%, 1 rows/s, 1m30s left",
        "20 of 100 rows, 20%, 1 rows/s, 1m20s left",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59, "59s"), (200, "3m20s"), (7500, "2h05m")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
