"""Download the files of one version into a folder: resumed, checked, and repeated after errors."""

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, Listing, Remote, RemoteFile, SourceChanged
from frameworks.sources.offline import HubOffline
from frameworks.sources.served_files import Selection, ServedFile

if TYPE_CHECKING:
    from hashlib import _Hash

log = structlog.get_logger(__name__)

RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
MAX_RETRY_AFTER_S = 60.0

# A connection on which so many bytes were received does not count as failed.
_PROGRESS_BYTES = 1 << 20
_MAX_SMALL_BYTES = 16 << 20


class Cancelled(Exception):
    """The fetch was cancelled. The parts that it has downloaded are kept."""


@dataclass(slots=True)
class Progress:
    """The state of a fetch, written by its thread. `received_bytes`: with those that an earlier run has received.

    `downloaded_bytes`: over the network, also those of a damaged part.
    """

    total_bytes: int = 0
    received_bytes: int = 0
    downloaded_bytes: int = 0
    file: str = ""


class Downloader:
    """Reads from one remote, in one thread."""

    def __init__(
        self, remote: Remote, progress: Progress, is_cancelled: threading.Event, delays_s: tuple[float, ...]
    ) -> None:
        self._remote = remote
        self.progress = progress
        self._is_cancelled = is_cancelled
        self._delays_s = delays_s

    def list_files(self, max_retries: int | None = None) -> Listing:
        """Return the files of the source. Raises SourceUnavailable after so many retries; None: all delays."""
        for delay_s in self._delays_s[:max_retries]:
            self._check_cancelled()
            try:
                return self._remote.list_files()
            except HubOffline:
                raise
            except SourceUnavailable as error:
                self._wait(delay_s, error)
        return self._remote.list_files()

    def read_small(self, file: RemoteFile) -> bytes:
        """Return the content of a small file that selects others."""
        if file.size > _MAX_SMALL_BYTES:
            raise InvalidModel(f"{file.name}: expected at most {_MAX_SMALL_BYTES} bytes, got {file.size}")
        content = bytearray()
        self._read_on(file, lambda: len(content), content.extend)
        return bytes(content)

    def fetch(self, selection: Selection, folder: Path) -> None:
        """Complete the files in a folder. Raises OSError, SourceChanged, SourceUnavailable, InvalidModel, Cancelled."""
        self.progress.total_bytes = selection.total_bytes
        done = 0
        for each in selection.files:
            self.progress.file = each.name
            target = folder / each.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_file() or target.stat().st_size != each.remote.size:
                self._complete(each, target, done)
            done += each.remote.size
            self.progress.received_bytes = done

    def pause(self, delay_s: float) -> None:
        """Wait. Raises Cancelled at once where the fetch is cancelled meanwhile."""
        if self._is_cancelled.wait(delay_s):
            raise Cancelled

    def _complete(self, file: ServedFile, target: Path, done: int) -> None:
        """Download one file, once more after a wrong hash."""
        part = target.with_name(f"{target.name}.part")
        if not self._download(file.remote, part, done):
            log.warning("downloaded file has another hash; it is downloaded again", file=file.remote.name)
            part.unlink()
            if not self._download(file.remote, part, done):
                part.unlink()
                raise InvalidModel(
                    f"{file.remote.name}: expected the content that the source lists, got another hash twice; "
                    "upload the file again or name another revision"
                )
        part.replace(target)

    def _download(self, file: RemoteFile, part: Path, done: int) -> bool:
        """Append the missing bytes to a part and make it durable. Return whether it has the hash that is listed."""
        hashes = _hashes(file)
        if part.is_file() and part.stat().st_size > file.size:
            part.unlink()
        with part.open("ab") as opened:
            for chunk in _chunks(part):
                self._check_cancelled()
                _update(hashes, chunk)

            def write(chunk: bytes) -> None:
                opened.write(chunk)
                _update(hashes, chunk)
                self.progress.downloaded_bytes += len(chunk)
                self.progress.received_bytes = done + opened.tell()

            self.progress.received_bytes = done + opened.tell()
            self._read_on(file, opened.tell, write)
            opened.flush()
            os.fsync(opened.fileno())
        return all(each.hexdigest() == expected for each, expected in hashes)

    def _read_on(self, file: RemoteFile, position: Callable[[], int], write: Callable[[bytes], object]) -> None:
        """Write the bytes from `position` to the end of a file. Repeats reads that failed, from where they ended."""
        failures = 0
        while (offset := position()) < file.size:
            try:
                self._read(file, offset, write)
                if position() < file.size:
                    raise SourceUnavailable(f"{file.name}: expected {file.size} bytes, got {position()}")
            except SourceUnavailable as error:
                failures = 1 if position() - offset >= _PROGRESS_BYTES else failures + 1
                if failures > len(self._delays_s):
                    raise
                self._wait(self._delays_s[failures - 1], error)

    def _read(self, file: RemoteFile, offset: int, write: Callable[[bytes], object]) -> None:
        received = offset
        self._check_cancelled()
        chunks = self._remote.read(file, offset)
        try:
            for chunk in chunks:
                received += len(chunk)
                if received > file.size:
                    raise SourceChanged(f"{file.name}: expected {file.size} bytes, got more")
                write(chunk)
                self._check_cancelled()
        finally:
            if isinstance(chunks, Generator):
                chunks.close()  # closes its connection

    def _wait(self, delay_s: float, error: SourceUnavailable) -> None:
        delay_s = max(delay_s, min(error.retry_after_s or 0.0, MAX_RETRY_AFTER_S))
        log.info("source does not answer; trying again", error=error.message, delay_s=delay_s)
        self.pause(delay_s)

    def _check_cancelled(self) -> None:
        if self._is_cancelled.is_set():
            raise Cancelled


def part_bytes(selection: Selection, folder: Path) -> int:
    """Return the bytes that an earlier run has downloaded."""
    total = 0
    for each in selection.files:
        for file in (folder / each.name, folder / f"{each.name}.part"):
            with suppress(OSError):
                total += min(file.stat().st_size, each.remote.size)
    return total


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk


def _hashes(file: RemoteFile) -> "list[tuple[_Hash, str]]":
    """Return the hashes to compute, each with the expected digits."""
    hashes: list[tuple[_Hash, str]] = []
    if file.sha256 is not None:
        hashes.append((hashlib.sha256(), file.sha256.lower()))
    if file.git_sha1 is not None:
        header = f"blob {file.size}\0".encode()
        hashes.append((hashlib.sha1(header, usedforsecurity=False), file.git_sha1.lower()))
    return hashes


def _update(hashes: "list[tuple[_Hash, str]]", chunk: bytes) -> None:
    for each, _ in hashes:
        each.update(chunk)
