"""A source in memory with faults, for tests of the store."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from frameworks.sources.contract import Listing, Remote, RemoteFile

CHUNK = 1000
WEIGHTS = bytes(range(256)) * 40
CONTENTS = {"model.safetensors": WEIGHTS, "config.json": b"{}", "pytorch_model.bin": b"pickle", "run.py": b"code"}


@dataclass(slots=True)
class FakeSource:
    """The content of a source, which `open` opens any number of times.

    `before_chunk`: called with the name and the offset of each chunk before it is sent; may raise.
    """

    files: dict[str, bytes] = field(default_factory=lambda: dict(CONTENTS))
    revision: str | None = "a" * 40
    has_hashes: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    """Sent instead of the content that is listed."""
    on_list: Callable[[], None] = lambda: None
    before_chunk: Callable[[str, int], None] = lambda name, offset: None
    reads: list[tuple[str, int]] = field(default_factory=list)
    listings: int = 0
    closed: int = 0

    def open(self, address: object) -> Remote:
        return _FakeRemote(self)


@dataclass(slots=True)
class _FakeRemote:
    source: FakeSource

    def list_files(self) -> Listing:
        self.source.listings += 1
        self.source.on_list()
        files = tuple(self._file(name, content) for name, content in self.source.files.items())
        return Listing(files, self.source.revision)

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        source = self.source
        source.reads.append((file.name, offset))
        content = source.sent.get(file.name, source.files[file.name])
        for start in range(offset, len(content), CHUNK):
            source.before_chunk(file.name, start)
            yield content[start : start + CHUNK]

    def close(self) -> None:
        self.source.closed += 1

    def _file(self, name: str, content: bytes) -> RemoteFile:
        size = self.source.sizes.get(name, len(content))
        etag = hashlib.md5(content).hexdigest()
        sha256 = hashlib.sha256(content).hexdigest() if self.source.has_hashes else None
        return RemoteFile(name, size, etag, sha256)
