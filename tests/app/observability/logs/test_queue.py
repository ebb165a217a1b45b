"""Lines are written by a thread: a reader that has stopped loses lines and blocks no caller."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.observability.logs.queue import MAX_QUEUED_CHARACTERS, LogQueue
from tests.support.loops import HANGS_AFTER_S

LINE = "x" * 999


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with suppress(OSError):
            os.close(descriptor)


def read_lines(descriptor: int, last: str) -> list[str]:
    """Read until a line is `last`."""
    content = b""
    while not content.endswith(f"{last}\n".encode()):
        content += os.read(descriptor, 65536)
    return content.decode().splitlines()


def test_lines_are_written_in_order_by_a_thread(pipe: tuple[int, int]) -> None:
    read, write = pipe
    queue = LogQueue(write, "utf-8", lambda count: None)
    for number in range(1000):
        queue.write(str(number))
    queue.write("half of a pair: \ud800, ü")
    queue.write("end")
    lines = read_lines(read, "end")
    assert lines == [*map(str, range(1000)), "half of a pair: \\ud800, ü", "end"]
    queue.close(HANGS_AFTER_S)
    assert not any(thread.name == "log" for thread in threading.enumerate())
    queue.write("again")
    assert read_lines(read, "again") == ["again"]
    queue.close(HANGS_AFTER_S)


def test_shown_line_stays_below_others(pipe: tuple[int, int]) -> None:
    read, write = pipe
    queue = LogQueue(write, "utf-8", lambda count: None, is_terminal=True)
    for line in ("bar 1", "bar 2"):
        queue.show(line)
        queue.flush(HANGS_AFTER_S)
    queue.write("line")
    queue.flush(HANGS_AFTER_S)
    queue.show("")
    queue.close(HANGS_AFTER_S)
    erase = "\r\x1b[K"
    assert os.read(read, 999).decode() == f"bar 1{erase}bar 2{erase}line\nbar 2{erase}"


def test_pipe_gets_no_shown_line(pipe: tuple[int, int]) -> None:
    read, write = pipe
    queue = LogQueue(write, "utf-8", lambda count: None)
    queue.show("bar")
    queue.write("line")
    assert read_lines(read, "line") == ["line"]
    queue.close(HANGS_AFTER_S)


def test_stopped_reader_loses_lines_and_blocks_nothing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    told: list[int] = []
    queue = LogQueue(write, "utf-8", told.append)
    for _ in range(3 * MAX_QUEUED_CHARACTERS // len(LINE)):
        queue.write(LINE)
    dropped = queue.dropped
    assert 0 < dropped < 3 * MAX_QUEUED_CHARACTERS // len(LINE)
    queue.flush(0.01)  # returns, although the reader has not taken all
    reader = threading.Thread(target=read_lines, args=(read, "end"))
    reader.start()
    queue.flush(HANGS_AFTER_S)
    queue.write("end")
    reader.join()
    # In one number or two: the thread may have written its first lines before or after the others were dropped.
    assert sum(told) == dropped
    assert queue.dropped == dropped
    queue.close(HANGS_AFTER_S)


def test_non_blocking_stream_gets_every_line(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    queue = LogQueue(write, "utf-8", lambda count: None)
    for _ in range(500):
        queue.write(LINE)
    queue.write("end")
    assert read_lines(read, "end") == [*[LINE] * 500, "end"]
    queue.close(HANGS_AFTER_S)


def test_closed_pipe_loses_lines_and_counts_them(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    handler = signal.getsignal(signal.SIGPIPE)
    assert handler == signal.SIG_IGN
    queue = LogQueue(write, "utf-8", lambda count: None)
    for _ in range(3):
        queue.write("lost")
        queue.flush(HANGS_AFTER_S)
    assert queue.dropped == 3
    queue.close(HANGS_AFTER_S)


def test_signal_handler_may_log_during_write(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        queue = LogQueue(file.fileno(), "utf-8", lambda count: None)
        before = signal.signal(signal.SIGUSR1, lambda *_: queue.write("in the handler"))
        try:
            with queue._changed:
                signal.raise_signal(signal.SIGUSR1)
                queue.write("after it")
        finally:
            signal.signal(signal.SIGUSR1, before)
        queue.close(HANGS_AFTER_S)
    assert (tmp_path / "log").read_text().split("\n") == ["in the handler", "after it", ""]
