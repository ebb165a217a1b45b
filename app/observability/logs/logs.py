"""Write events of structlog and records of the standard library in one format, to standard error.

The lines are queued for a thread (`queue.py`); `flush_logs` waits for it before the process ends.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, TextIO

import orjson
import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from app.observability.logs.queue import LineSink, LogQueue

# Libraries that log warnings and errors only.
_QUIET_LIBRARIES = ("httpx", "httpcore", "asyncio", "transformers", "urllib3", "filelock")

FLUSH_S = 1.0
"""How long the end of the process waits for the reader of the log."""

_sinks: list[LineSink] = []
"""The sink of the last `configure_logging`."""


def configure_logging(
    level: str,
    log_format: str,
    stream: TextIO | None = None,
    lock: AbstractContextManager[None] | None = None,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Configure structlog and logging.

    `level`: debug, info, warning or error. `log_format`: json, console, or auto (console on a terminal). `stream`: is
    written at once, without a queue; None: standard error. `lock`: of all processes that write to standard error; None
    for one process. `fields`: in each line, such as the number of a worker.
    """
    out = stream or sys.stderr
    sink = _StreamSink(out) if stream is not None else _queue_for(out, lock)
    _sinks[:] = [sink]
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _drop_nones,
        *((partial(_add_fields, fields),) if fields else ()),
    ]
    last: list[Processor]
    if console:
        # structlog's default shows the values of variables, and so the keys of requests.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty(), sort_keys=False, exception_formatter=plain)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    structlog.configure(
        processors=[*shared, *last],
        logger_factory=lambda *_: _LineLogger(sink),
        cache_logger_on_first_use=False,
    )
    handler = _LineHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.getLogger().handlers[:] = [handler]
    set_log_level(level)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_log_level(level: str) -> None:
    """Log from this level on; it may change at any time. `level`: as of `configure_logging`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))
    logging.getLogger().setLevel(max(number, logging.WARNING) if level != "debug" else number)


def show_line(line: str) -> None:
    """Keep this line below the log where it is on a terminal; "" removes it."""
    for sink in _sinks:
        sink.show(line)


def flush_logs(timeout_s: float) -> None:
    """Remove the line of `show_line`, and wait until the queued lines are written."""
    for sink in _sinks:
        sink.show("")
        sink.flush(timeout_s)


def close_logs(timeout_s: float) -> None:
    """As `flush_logs`, and end the thread that writes. Later lines start it again."""
    for sink in _sinks:
        sink.close(timeout_s)


def write_lines(lines: Iterable[str]) -> None:
    """Write text for people in the order of the log lines, without their form."""
    for sink in _sinks:
        sink.write("\n".join(lines))


def lost_lines() -> int:
    """Return the number of log lines that were dropped, as the reader was too slow or the stream is broken."""
    return sum(sink.dropped for sink in _sinks)


def _queue_for(stream: TextIO, lock: AbstractContextManager[None] | None) -> LineSink:
    try:
        return LogQueue(stream.fileno(), stream.encoding or "utf-8", _log_dropped, lock, stream.isatty())
    except (OSError, ValueError, AttributeError):  # it stands in for standard error
        return _StreamSink(stream)


def _log_dropped(count: int) -> None:
    structlog.get_logger(__name__).warning("log lines dropped", count=count)


class _StreamSink:
    """Write each line at once. As LineSink."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream

    def write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped += 1

    def show(self, line: str) -> None:
        """Nothing is shown: other writers use the stream too."""

    def flush(self, timeout_s: float) -> None:
        """Nothing is queued."""

    close = flush


class _LineLogger:
    """The logger that structlog calls with the finished line."""

    def __init__(self, sink: LineSink) -> None:
        self.msg = sink.write
        self.debug = self.info = self.warning = self.warn = self.error = self.msg
        self.critical = self.exception = self.fatal = self.log = self.msg


class _LineHandler(logging.Handler):
    """Write records of the standard library."""

    def __init__(self, sink: LineSink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.write(self.format(record))
        except Exception:  # noqa: BLE001 - arguments that do not fit their text: the line is lost
            self._sink.dropped += 1


def _drop_nones(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    return {key: value for key, value in event.items() if value is not None}


def _add_fields(fields: Mapping[str, object], logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    event.update(fields)
    return event


def _to_json(event: EventDict, **_: Any) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # An integer of more than 64 bits, or text that is not UTF-8, such as a file name: the request must not fail.
        return json.dumps(event, default=str, skipkeys=True)
