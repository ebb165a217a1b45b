"""Write the log of an engine process to standard output, as lines of JSON that the server logs again."""

import contextlib
import logging
import os
import sys
from typing import Any

import structlog
from structlog.types import EventDict, WrappedLogger

_STDOUT = 1
# With its other fields a line stays below the length that the server reads.
_MAX_TRACEBACK_CHARACTERS = 8 * 1024


def configure_logging(level: str) -> None:
    """Configure structlog and logging. `level`: debug, info, warning or error.

    The server adds the time.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _shorten_traceback,
            structlog.processors.JSONRenderer(default=str, skipkeys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_LineLogger,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Handler()]
    root.setLevel(max(number, logging.WARNING))
    # Lines that were printed before a crash must not be lost in a buffer.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


class _LineLogger:
    """The logger that structlog calls with the finished line."""

    def __init__(self, *_: Any) -> None:
        self.debug = self.info = self.warning = self.warn = self.error = self.msg
        self.critical = self.exception = self.fatal = self.log = self.msg

    def msg(self, line: str) -> None:
        """Write a line in one piece: other threads write, too."""
        # The server may have ended. A lost line never fails a request.
        with contextlib.suppress(OSError):
            os.write(_STDOUT, f"{line}\n".encode(errors="backslashreplace"))


class _Handler(logging.Handler):
    """Log the records of the standard library with structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit their text
            message = str(record.msg)
        # Libraries have levels of their own, which structlog does not know.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        structlog.get_logger().log(level, message, logger=record.name, exc_info=record.exc_info)


def _shorten_traceback(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    if "exception" in event:
        event["exception"] = event["exception"][-_MAX_TRACEBACK_CHARACTERS:]
    return event
