"""A source of models that is a local folder: each repository is a folder below it."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import SourceUnavailable
from frameworks.sources.contract import Listing, RemoteFile
from tests.support.loops import HANGS_AFTER_S

HELD_AFTER_BYTES = 1000
_CHUNK_BYTES = 1000


@dataclass(slots=True)
class SourceFolder:
    """`listings` and `served_bytes` count answers. `gate`: chunks wait for it after the first HELD_AFTER_BYTES."""

    folder: Path
    listings: list[str] = field(default_factory=list)
    served_bytes: int = 0
    gate: threading.Event | None = None
    is_held: threading.Event = field(default_factory=threading.Event)
    is_away: bool = False
    reading: int = 0
    """Downloads of files that run."""
    most_reading: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, repository: str, weights: bytes | None = None, graph: bytes | None = None) -> None:
        """Write the files of a model, in place of older ones."""
        folder = self.folder / repository
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("config.json", b"{}"), ("model.safetensors", weights), ("model.onnx", graph)):
            if content is not None:
                (folder / name).write_bytes(content)

    def open(self, address: SourceAddress) -> "FolderRemote":
        return FolderRemote(self, address)

    def enter(self) -> None:
        with self.lock:
            self.reading += 1
            self.most_reading = max(self.most_reading, self.reading)

    def leave(self) -> None:
        with self.lock:
            self.reading -= 1


class FolderRemote:
    """Implements Remote."""

    def __init__(self, source: SourceFolder, address: SourceAddress) -> None:
        self._source = source
        self._address = address
        self._folder = source.folder / address.repository

    def list_files(self) -> Listing:
        self._source.listings.append(str(self._address))
        if self._source.is_away:
            raise SourceUnavailable(f"{self._address}: expected an answer, got none")
        files = sorted(file for file in self._folder.rglob("*") if file.is_file())
        return Listing(tuple(self._file(file) for file in files))

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        content = (self._folder / file.name).read_bytes()
        self._source.enter()
        try:
            for start in range(offset, len(content), _CHUNK_BYTES):
                if self._source.is_away:
                    raise SourceUnavailable(f"{self._address}: expected bytes, got none")
                if self._source.gate is not None and self._source.served_bytes >= HELD_AFTER_BYTES:
                    self._source.is_held.set()
                    assert self._source.gate.wait(HANGS_AFTER_S), "the gate was not opened"
                chunk = content[start : start + _CHUNK_BYTES]
                self._source.served_bytes += len(chunk)
                yield chunk
        finally:
            self._source.leave()

    def close(self) -> None:
        pass

    def _file(self, file: Path) -> RemoteFile:
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return RemoteFile(str(file.relative_to(self._folder)), len(content), digest, sha256=digest)
