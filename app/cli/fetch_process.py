"""Run a download for the command line. Standard output gets one line of JSON: the framework, or the error."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from app.extension import open_remote
from app.observability.logs.logs import configure_logging
from app.observability.logs.progress_bars import ERASE_LINE, draw_bar, format_seconds, in_place
from frameworks.core.addresses import parse_address
from frameworks.core.errors import RoundhouseError
from frameworks.sources.contract import Framework
from frameworks.sources.store import Cancelled, Fetched, Progress, SourceStore
from memory.sizes import format_size

_FRAMEWORKS: dict[str, Framework | None] = {"": None, "onnx": "onnx", "pytorch": "pytorch"}
_SHOW_S = 0.2
_LINE_EVERY_S = 10.0
_CANCELLED_WITHIN_S = 0.5
_END_WITHIN_S = 2.0


def main(arguments: Sequence[str]) -> int:
    """Fetch a model. Returns the exit status.

    `arguments`: the cache folder, the maximum bytes, the framework or "", and the address.
    """
    cache_dir, max_bytes, framework, address = arguments
    configure_logging("warning", "auto", sys.stderr)
    download = _Download(SourceStore(Path(cache_dir), int(max_bytes), open_remote), address, framework)
    threading.Thread(target=_end_with_parent, args=(download,), daemon=True).start()
    answer = download.run()
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


class _Download:
    """One download in a thread of its own, while this one shows its progress."""

    def __init__(self, store: SourceStore, address: str, framework: str) -> None:
        self._store = store
        self._address = parse_address(address)
        self._framework = _FRAMEWORKS[framework]
        self._progress = Progress()
        self.is_cancelled = threading.Event()
        self._done = threading.Event()
        self._fetched: Fetched | None = None
        self._error = "interrupted"

    def run(self) -> dict[str, str]:
        bar = DownloadBar(str(self._address), sys.stderr)
        threading.Thread(target=self._fetch, daemon=True).start()
        while not self._done.wait(_SHOW_S) and not self.is_cancelled.is_set():
            bar.update(self._progress.received_bytes, self._progress.total_bytes)
        self._done.wait(_CANCELLED_WITHIN_S)
        fetched = self._fetched
        bar.close(None if fetched is None else fetched.downloaded_bytes)
        return {"error": self._error} if fetched is None else {"framework": fetched.framework}

    def _fetch(self) -> None:
        try:
            self._fetched = self._store.fetch(self._address, self._framework, self._progress, self.is_cancelled)
        except RoundhouseError as error:
            self._error = error.message
        except Cancelled:
            pass
        except Exception as error:  # noqa: BLE001 - the user gets it
            self._error = f"{self._address}: {type(error).__name__}: {error}"
        finally:
            self._done.set()


def _end_with_parent(download: _Download) -> None:
    """Cancel the download when the parent closes its end of the pipe, or dies."""
    # Not by sys.stdin: its lock would be held at the end of the interpreter, which then fails.
    while os.read(0, 4096):
        pass
    download.is_cancelled.set()
    time.sleep(_END_WITHIN_S)
    os._exit(1)


class DownloadBar:
    """Show how far a download is: a bar on a terminal, else a line every ten seconds.

    `name`: the address. `stream`: standard error.
    """

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
