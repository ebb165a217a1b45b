"""Show how far a run is: a bar on a terminal, else a line every ten seconds."""

import time
from collections.abc import Callable
from typing import TextIO

from app.observability.logs.progress_bars import draw_bar, format_seconds, in_place

_BAR_CHARACTERS = 30
_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 10.0


class RunProgress:
    """The rows of all files that are done. `resumed` of them were done by an earlier process."""

    def __init__(self, total: int, resumed: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._resumed = resumed
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._started_s = self._shown_s = clock()
        self.done = resumed

    def add(self, rows: int) -> None:
        """Count rows, and show the state if enough time has passed."""
        self.done += rows
        now_s = self._clock()
        if now_s - self._shown_s >= (_BAR_EVERY_S if self._is_terminal else _LINE_EVERY_S):
            self._shown_s = now_s
            self._show()

    def close(self) -> None:
        """Show the last state, and end the line of the bar."""
        self._show()
        if self._is_terminal:
            self._stream.write("\n")

    def describe(self) -> str:
        """Return the state: rows, share, rows per second and time left."""
        elapsed_s = self._clock() - self._started_s
        rate = (self.done - self._resumed) / elapsed_s if elapsed_s > 0 else 0.0
        share = self.done / self._total if self._total else 1.0
        left = format_seconds((self._total - self.done) / rate) if rate > 0 else "?"
        return f"{self.done:,} of {self._total:,} rows, {share:.0%}, {rate:,.0f} rows/s, {left} left"

    def _show(self) -> None:
        if not self._is_terminal:
            self._stream.write(self.describe() + "\n")
        else:
            bar = draw_bar(self.done, self._total, _BAR_CHARACTERS, is_full=True)
            self._stream.write(in_place(f"{bar} {self.describe()}"))
        self._stream.flush()
