"""Log lines: one format for events and records, and lost lines on a broken stream."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import structlog

from app.observability.logs.logs import configure_logging


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_and_records_have_one_format() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    structlog.get_logger("x").info("model ready", model="m", nothing=None, size=np.int64(3), path=Path("/a"))
    logging.getLogger("library").warning("careful with %s", "this", extra={"more": 1})
    first, second = lines(stream)
    assert first.items() >= {"event": "model ready", "level": "info", "model": "m", "size": 3, "path": "/a"}.items()
    assert "nothing" not in first
    assert second.items() >= {"event": "careful with this", "level": "warning", "more": 1}.items()
    assert first["timestamp"].endswith("Z")


def test_exception_is_one_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    try:
        raise ValueError("first line\nsecond line")
    except ValueError as error:
        structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("library").exception("failed")
    for event in lines(stream):
        assert "ValueError: first line\nsecond line" in event["exception"]
    assert len(lines(stream)) == 2


def test_values_without_json_form_become_text() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    structlog.get_logger().info("odd", value={1: {2}, None: object}, number=2**70, bad="\ud800", line="a\nb\x1b[0m")
    structlog.get_logger().info("number", value=np.float32(0.5), number=2**64 - 1)
    odd, number = lines(stream)
    assert (odd["event"], odd["number"], odd["bad"], odd["line"]) == ("odd", 2**70, "\ud800", "a\nb\x1b[0m")
    assert (number["value"], number["number"]) == (0.5, 2**64 - 1)


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("debug", ["d", "i", "w", "e", "quiet unless debugging", "lib"]),
        ("info", ["i", "w", "e", "lib"]),
        ("warning", ["w", "e", "lib"]),
        ("error", ["e"]),
    ],
)
def test_level_selects_events_and_records(level: str, wanted: list[str]) -> None:
    stream = io.StringIO()
    configure_logging(level, "json", stream)
    log = structlog.get_logger()
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    logging.getLogger("library").info("quiet unless debugging")
    logging.getLogger("library").warning("lib")
    assert [event["event"] for event in lines(stream)] == wanted


def test_auto_format_is_console_on_terminal() -> None:
    for log_format, stream, is_json in (
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ):
        configure_logging("info", log_format, stream)
        structlog.get_logger().info("model ready", model="m")
        assert stream.getvalue().startswith("{") is is_json
        assert ("\x1b" in stream.getvalue()) is (stream.isatty() and not is_json)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_console_traceback_shows_no_values() -> None:
    """Values of variables may hold the headers of a request, and so a key."""
    stream = Terminal()
    configure_logging("info", "auto", stream)
    secret = "rh_" + "a" * 12
    try:
        _ = {"authorization": secret}["absent"]
    except KeyError:
        structlog.get_logger("x").exception("failed")
    assert "KeyError" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_failed_write_loses_only_its_line() -> None:
    closed = io.StringIO()
    closed.close()
    streams: tuple[TextIO, ...] = (FullDisk(), closed)
    for stream in streams:
        configure_logging("info", "json", stream)
        structlog.get_logger().info("lost")
        logging.getLogger("library").warning("lost too")
    later = io.StringIO()
    configure_logging("info", "json", later)
    structlog.get_logger().info("kept")
    assert [json.loads(line)["event"] for line in later.getvalue().splitlines()] == ["kept"]
