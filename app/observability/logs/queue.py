"""Write log lines on a thread of their own: a reader that has stopped, or a slow disk, holds up no request."""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from app.observability.logs.progress_bars import ERASE_LINE

MAX_QUEUED_CHARACTERS = 1024 * 1024
"""Lines beyond this are dropped and counted until the reader takes some."""
_WRITE_BYTES = 64 * 1024
_POLL_S = 1.0


class LineSink(Protocol):
    """Where log lines are written. A line that cannot be written is lost, and never fails a request."""

    dropped: int
    """Number of lost lines."""

    def write(self, line: str) -> None:
        """Write a line, which has no line end."""
        ...

    def show(self, line: str) -> None:
        """Keep this line below all others, on a terminal alone; "" removes it."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, at most `timeout_s`."""
        ...

    def close(self, timeout_s: float) -> None:
        """As `flush`, and release what the sink holds."""
        ...


class LogQueue:
    """A bounded queue of lines, and the thread that writes them to a file descriptor. Any thread may call it.

    Not through sys.stderr: its lock would be held while a write blocks, and the interpreter needs it at its end.
    """

    def __init__(
        self,
        descriptor: int,
        encoding: str,
        on_dropped: Callable[[int], None],
        lock: AbstractContextManager[None] | None = None,
        is_terminal: bool = False,
    ) -> None:
        """`on_dropped` gets the number of lines that were lost since its last call, when lines are written again.

        `lock`: held while whole lines are written, where other processes write to the same stream. `is_terminal`: the
        line of `show` is drawn.
        """
        self.dropped = 0
        self._reported = 0
        self._on_dropped = on_dropped
        self._lock = lock or nullcontext()
        self._is_terminal = is_terminal
        # Another process may have drawn its line.
        self._is_shared = is_terminal and lock is not None
        # The line of `show`, and what is drawn of it.
        self._shown = self._drawn = ""
        self._descriptor = descriptor
        self._encoding = encoding
        self._lines: deque[str] = deque()
        self._queued = 0
        self._is_writing = False
        # Re-entrant: a signal handler that logs may interrupt `write`.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def write(self, line: str) -> None:
        """Queue a line; drop it if the queue is full."""
        with self._changed:
            if self._queued + len(line) > MAX_QUEUED_CHARACTERS:
                self.dropped += 1
                return
            self._lines.append(line)
            self._queued += len(line) + 1
            self._wake()

    def show(self, line: str) -> None:
        """As LineSink.show."""
        if self._is_terminal:
            with self._changed:
                self._shown = line
                self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_queued, name="log", daemon=True)
            self._thread.start()
        elif not self._is_writing:
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._has_work and not self._is_writing, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued and end the thread, within `timeout_s`. A later line starts it again."""
        until_s = time.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._changed:
            thread, self._is_closed = self._thread, True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, until_s - time.monotonic()))

    def _write_queued(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_work or self._is_closed)
                if not self._has_work:
                    self._thread, self._is_closed = None, False
                    return
                self._is_writing = True
                lines, self._queued = [*self._lines, ""], 0
                self._lines.clear()
                text = self._drawing("\n".join(lines))
            # As sys.stderr does: file names may hold bytes that are no text.
            content = text.encode(self._encoding, "backslashreplace")
            with self._lock:
                is_written = self._write_all(memoryview(content))
            if not is_written:
                with self._changed:
                    self.dropped += len(lines) - 1
            elif self.dropped > self._reported:
                lost, self._reported = self.dropped - self._reported, self.dropped
                self._on_dropped(lost)

    @property
    def _has_work(self) -> bool:
        return bool(self._lines) or self._shown != self._drawn

    def _drawing(self, text: str) -> str:
        """Return the text of some lines, with the shown line erased before and drawn behind."""
        drawn, self._drawn = self._drawn, self._shown
        return (ERASE_LINE if drawn or self._is_shared else "") + text + self._shown

    def _write_all(self, content: memoryview) -> bool:
        """Return False where the rest is lost: the disk is full, or the reader has closed the pipe."""
        while content:
            try:
                content = content[os.write(self._descriptor, content[:_WRITE_BYTES]) :]
            except BlockingIOError:
                # Another process made the shared description non-blocking.
                select.select([], [self._descriptor], [], _POLL_S)
            except OSError:
                return False
        return True
