"""The progress of a download on a terminal, and elsewhere."""

import io

from app.cli.fetch_process import DownloadBar

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_bar_rate_and_time() -> None:
    now, stream = [0.0], Terminal()
    bar = DownloadBar("hf://org/name", stream, lambda: now[0])
    bar.update(0, 0)
    assert "listing the files" in stream.getvalue()
    now[0] = 5.0
    bar.update(10 * MIB, 100 * MIB)  # an earlier download has received them
    now[0] = 15.0
    bar.update(60 * MIB, 100 * MIB)
    shown = stream.getvalue().split("\r")[-1]
    assert shown == "█" * 14 + "░" * 10 + " 60 MiB of 100 MiB, 60%, 5 MiB/s, 8s left\x1b[K"
    bar.close(90 * MIB)
    assert stream.getvalue().endswith("\r\x1b[Khf://org/name: downloaded 90 MiB in 10s\n")


def test_file_gets_line_every_ten_seconds() -> None:
    now, stream = [0.0], io.StringIO()
    bar = DownloadBar("hf://org/name", stream, lambda: now[0])
    for now[0] in range(25):
        bar.update(int(now[0]) * MIB, 100 * MIB)
    bar.close(None)
    assert stream.getvalue().splitlines() == [
        "hf://org/name: 10 MiB of 100 MiB, 10%, 1 MiB/s, 1m30s left",
        "hf://org/name: 20 MiB of 100 MiB, 20%, 1 MiB/s, 1m20s left",
    ]


def test_cached_model_shows_nothing() -> None:
    stream = io.StringIO()
    bar = DownloadBar("hf://org/name", stream)
    bar.close(0)
    assert stream.getvalue() == ""


def test_empty_model_has_no_share() -> None:
    stream = Terminal()
    bar = DownloadBar("hf://org/name", stream, lambda: 1.0)
    bar.update(0, 1)
    assert "0%, 0 B/s, ? left" in stream.getvalue()
