"""Show how far a download is: a bar on a terminal, else a line every ten seconds."""

import time
from collections.abc import Callable
from typing import TextIO

from app.observability.logs.progress_bars import ERASE_LINE, draw_bar, format_seconds, in_place
from memory.sizes import format_size

_LINE_EVERY_S = 10.0


class DownloadBar:
    """`name`: the address. `stream`: standard error."""

    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._started_s = self._shown_s = clock()
        self._first_bytes: int | None = None

    def update(self, received_bytes: int, total_bytes: int) -> None:
        """Show the state: on a terminal at each call, else if enough time has passed. `total_bytes`: 0 if unknown."""
        now_s = self._clock()
        if self._first_bytes is None and total_bytes:
            self._first_bytes, self._started_s = received_bytes, now_s
        if self._is_terminal:
            bar = draw_bar(received_bytes, total_bytes)
            self._write(in_place(f"{bar} {self._state(received_bytes, total_bytes)}"))
        elif now_s - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now_s
            self._write(f"{self._name}: {self._state(received_bytes, total_bytes)}\n")

    def close(self, downloaded_bytes: int | None) -> None:
        """Show the end. `downloaded_bytes`: 0 where the cache had all files; None where the download failed."""
        if self._is_terminal:
            self._write(ERASE_LINE)
        if downloaded_bytes:
            seconds = self._clock() - self._started_s
            self._write(f"{self._name}: downloaded {format_size(downloaded_bytes)} in {format_seconds(seconds)}\n")

    def _state(self, received_bytes: int, total_bytes: int) -> str:
        if not total_bytes:
            return "listing the files"
        elapsed_s = self._clock() - self._started_s
        rate = (received_bytes - (self._first_bytes or 0)) / elapsed_s if elapsed_s > 0 else 0.0
        left = format_seconds((total_bytes - received_bytes) / rate) if rate > 0 else "?"
        share = received_bytes / total_bytes
        size = f"{format_size(received_bytes)} of {format_size(total_bytes)}"
        return f"{size}, {share:.0%}, {format_size(int(rate))}/s, {left} left"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
