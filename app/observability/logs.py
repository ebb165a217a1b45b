"""Write events of structlog and records of the standard library in one format, to standard error."""

import json
import logging
import sys
from typing import Any, TextIO

import orjson
import structlog
from structlog.types import EventDict, Processor, WrappedLogger

# Libraries that log warnings and errors only.
_QUIET_LIBRARIES = ("httpx", "httpcore", "asyncio", "transformers", "urllib3", "filelock")


def configure_logging(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Configure structlog and logging.

    `level`: debug, info, warning or error. `log_format`: json, console, or auto (console on a terminal).
    """
    out = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _drop_nones,
    ]
    last: list[Processor]
    if console:
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty(), sort_keys=False)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _LineWriter(out),
        cache_logger_on_first_use=False,
    )
    handler = _LineHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING) if level != "debug" else number)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


class _LineWriter:
    """Writes lines. A failed write (full disk, closed pipe) loses the line and never fails a request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        try:
            self._stream.write(message + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _LineHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method of logging
        """Lose the line, as _LineWriter does: no traceback is written to the broken stream."""


def _drop_nones(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    return {key: value for key, value in event.items() if value is not None}


def _to_json(event: EventDict, **_: Any) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # An integer of more than 64 bits, or text that is not UTF-8, such as a file name: the request must not fail.
        return json.dumps(event, default=str, skipkeys=True)
