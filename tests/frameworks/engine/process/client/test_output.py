"""The output of an engine process: log lines, other lines, floods."""

import asyncio
import contextlib
import os
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.engine.process.client import output
from frameworks.engine.process.client.output import (
    KEPT_BYTES,
    MAX_BYTES,
    MAX_LINE_BYTES,
    MAX_LINES,
    OutputLines,
    OutputReader,
)
from tests.support.engine_processes import end_of
from tests.support.loops import in_loop, soon

LINE = b'{"event": "batch split", "level": "warning", "rows": 3}\n'
LOGGED = {"event": "batch split", "log_level": "warning", "rows": 3, "engine": "minilm"}


def fed(*pieces: bytes) -> tuple[OutputLines, list[Any]]:
    """Return the lines of one window, and the log."""
    lines = OutputLines("minilm")
    with capture_logs() as logged:
        for piece in pieces:
            lines.feed(piece)
        lines.close()
    return lines, logged


def test_log_line_is_logged_with_engine() -> None:
    lines, logged = fed(LINE)
    assert logged == [LOGGED]
    assert lines.native_output == ""


@given(st.lists(st.integers(0, 3 * len(LINE))))
def test_pieces_of_lines_are_joined(cuts: list[int]) -> None:
    ends = sorted({min(cut, 3 * len(LINE)) for cut in cuts} | {0, 3 * len(LINE)})
    pieces = [(3 * LINE)[first:last] for first, last in pairwise(ends)]
    assert fed(*pieces)[1] == [LOGGED] * 3


@pytest.mark.parametrize(
    "line",
    [b"Segmentation fault", b"{", b"[]", b'{"event": 1}', b'{"level": "info"}', b"\xff\xfe", b'{"a":' * 3000],
)
def test_other_line_is_native_output(line: bytes) -> None:
    lines, logged = fed(line + b"\n")
    assert lines.native_output == line.decode(errors="replace")[1 - KEPT_BYTES :]
    assert [each["event"] for each in logged] == ["engine output"]


def test_names_of_logger_arguments_are_dropped() -> None:
    names = ("self", "timestamp", "exc_info", "stack_info", "engine", "method_name", "args", "kw")
    fields = ", ".join(f'"{name}": true' for name in names)
    _, logged = fed(b'{"event": "x", "level": "odd", %s}\n' % fields.encode())
    assert logged[0]["log_level"] == "info"
    assert logged[0]["engine"] == "minilm"
    assert logged[0]["args"] is True


def test_lines_beyond_limit_are_counted() -> None:
    lines, logged = fed((MAX_LINES + 5) * LINE)
    assert [each["event"] for each in logged] == ["batch split"] * MAX_LINES + ["engine printed too many lines"]
    assert logged[-1]["dropped"] == 5
    assert lines.native_output.endswith(LINE.decode().strip())


def test_next_window_logs_again() -> None:
    lines = OutputLines("minilm")
    with capture_logs() as logged:
        lines.feed(2 * MAX_LINES * LINE)
        lines.start_window()
        lines.feed(LINE)
    assert logged[-1] == LOGGED
    assert lines.dropped == 0


def test_long_line_is_cut() -> None:
    lines, logged = fed(b"x" * MAX_LINE_BYTES, b"y" * MAX_LINE_BYTES, b"\nnext\n")
    assert [each["line"] for each in logged] == ["x" * MAX_LINE_BYTES, "next"]
    assert lines.native_output.endswith("x\nnext")


@given(st.lists(st.binary(max_size=300), max_size=40))
def test_native_output_is_end_of_lines(pieces: list[bytes]) -> None:
    lines, _ = fed(*pieces)
    content = b"\n".join(line for line in b"".join(pieces).split(b"\n") if line.strip()) + b"\n"
    assert lines.native_output == content[-KEPT_BYTES:].decode(errors="replace").strip()


@in_loop
async def test_reader_of_flood_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "WINDOW_S", 3600.0)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    reader = OutputReader(reading, OutputLines("minilm"), asyncio.get_running_loop())
    written = 0
    for _ in range(3 * MAX_BYTES // 4096):
        with contextlib.suppress(BlockingIOError):
            written += os.write(writing, b"x" * 4095 + b"\n")
        # The reader reads in each round of the loop unless it pauses.
        await asyncio.sleep(0)
    assert MAX_BYTES <= written < 2 * MAX_BYTES
    reader.close()
    os.close(writing)


@in_loop
async def test_reader_continues_in_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "WINDOW_S", 0.01)
    reading, writing = os.pipe()
    lines = OutputLines("minilm")
    reader = OutputReader(reading, lines, asyncio.get_running_loop())
    content = b"x" * 1023 + b"\n"
    await asyncio.to_thread(_write_all, writing, content * (3 * MAX_BYTES // len(content)) + b"last\n")
    await soon(lambda: lines.native_output.endswith("last"))
    reader.close()


@in_loop
async def test_close_reads_rest_of_pipe() -> None:
    reading, writing = os.pipe()
    lines = OutputLines("minilm")
    reader = OutputReader(reading, lines, asyncio.get_running_loop())
    os.write(writing, b"first\nlast")
    reader.close()
    assert lines.native_output == "first\nlast"
    os.close(writing)


@in_loop
async def test_log_of_process_is_logged() -> None:
    with capture_logs() as logged:
        reason = await end_of("log_lines")
    split, failed, other, run_failed = logged
    assert split == LOGGED
    assert failed["event"] == "failed at step 2"
    assert (failed["log_level"], failed["logger"]) == ("error", "library")
    assert other["line"] == "not a log line"
    assert run_failed["event"] == "run failed"
    assert run_failed["exception"].endswith("xxx'")
    assert reason.native_output == "not a log line"


@in_loop
async def test_log_level_of_process_is_given() -> None:
    with capture_logs() as logged:
        await end_of("log_lines", log_level="error")
    assert "batch split" not in [each["event"] for each in logged]
    with capture_logs() as logged:
        await end_of("log_lines", log_level="debug")
    assert logged[0]["event"] == "too fine"


def _write_all(fd: int, content: bytes) -> None:
    with open(fd, "wb") as pipe:
        pipe.write(content)
