"""Read what an engine process prints: log its log lines again, and keep the last of the rest for a crash."""

import asyncio
import json
import logging
import os
from typing import Any

import structlog

log = structlog.get_logger(__name__)

MAX_LINE_BYTES = 16 * 1024
"""The rest of a longer line is dropped."""
MAX_LINES = 200
"""Lines that are logged in each window; others are counted."""
MAX_BYTES = 1024 * 1024
"""Bytes that are read in each window; a process that prints more waits for the next one."""
WINDOW_S = 1.0
KEPT_BYTES = 4 * 1024
"""Bytes of native output that are kept."""

_READ_BYTES = 64 * 1024
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# The logger has arguments of these names, or adds the value itself.
_OWN_FIELDS = frozenset({"self", "method_name", "event", "level", "timestamp", "exc_info", "stack_info", "engine"})


class OutputLines:
    """Split the bytes that a process prints into lines, and log those of its logger. Bounded in work and in memory."""

    def __init__(self, engine: str) -> None:
        self.dropped = 0
        """Lines that were not logged since the last `start_window`."""
        self._engine = engine
        self._left = MAX_LINES
        self._partial = b""
        self._native = b""

    @property
    def native_output(self) -> str:
        """The last KEPT_BYTES besides log lines. After a flood they may begin in the middle of a line."""
        return self._native.decode(errors="replace").strip()

    def feed(self, content: bytes) -> None:
        """Take the next bytes; log the lines that they complete."""
        *lines, rest = (self._partial + content).split(b"\n", max(0, self._left))
        for line in lines:
            self._left -= 1
            self._take(line[:MAX_LINE_BYTES])
        dropped = rest.count(b"\n")
        if dropped:
            self.dropped += dropped
            unread, _, rest = rest.rpartition(b"\n")
            self._keep(unread)
        self._partial = rest[:MAX_LINE_BYTES]

    def start_window(self) -> None:
        """Allow MAX_LINES more lines, and log how many were dropped before."""
        if self.dropped:
            log.warning("engine printed too many lines", engine=self._engine, dropped=self.dropped)
        self.dropped, self._left = 0, MAX_LINES

    def close(self) -> None:
        """Take the last line, which has no end."""
        if self._partial:
            self._take(self._partial)
        self._partial = b""
        self.start_window()

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        fields = _log_fields(line)
        if fields is None:
            self._keep(line)
            log.debug("engine output", engine=self._engine, line=line.decode(errors="replace"))
        else:
            number = _LEVELS.get(str(fields["level"]), logging.INFO)
            others = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
            log.log(number, str(fields["event"]), engine=self._engine, **others)

    def _keep(self, content: bytes) -> None:
        self._native = (self._native + content[-KEPT_BYTES:] + b"\n")[-KEPT_BYTES:]


class OutputReader:
    """Read a pipe on the event loop until its end. `close` must follow."""

    def __init__(self, fd: int, lines: OutputLines, loop: asyncio.AbstractEventLoop) -> None:
        """Take over `fd`, the reading end."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._lines = lines
        self._loop = loop
        self._bytes = 0
        self._is_at_end = False
        self._window: asyncio.TimerHandle | None = None
        loop.add_reader(fd, self._read_some)

    def close(self) -> None:
        """Read what is in the pipe, which is bounded: another process may hold the writing end. Close the pipe."""
        self._loop.remove_reader(self._fd)
        if self._window is not None:
            self._window.cancel()
        left = MAX_BYTES
        while not self._is_at_end and left > 0 and (count := self._read()):
            left -= count
        self._is_at_end = True
        os.close(self._fd)
        self._lines.close()

    def _read_some(self) -> None:
        self._bytes += self._read()
        if self._window is None:
            self._window = self._loop.call_later(WINDOW_S, self._end_window)
        if self._is_at_end or self._bytes >= MAX_BYTES:
            self._loop.remove_reader(self._fd)

    def _end_window(self) -> None:
        self._window = None
        self._lines.start_window()
        if self._bytes >= MAX_BYTES and not self._is_at_end:
            self._loop.add_reader(self._fd, self._read_some)
        self._bytes = 0

    def _read(self) -> int:
        """Return the number of bytes that were read; 0 if there are none now, and at the end."""
        try:
            content = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        self._is_at_end = not content
        self._lines.feed(content)
        return len(content)


def _log_fields(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line that a structlog logger wrote; None for another line."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and "event" in fields and "level" in fields else None
