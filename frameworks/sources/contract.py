"""Define a source of models: it lists its files, and reads their bytes from any offset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from frameworks.core.addresses import SourceAddress

Framework = Literal["onnx", "pytorch"]

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk of `Remote.read`: a download is cancelled and counted between chunks."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source. `name`: its path below the address's repository, with `/`.

    `size`: in bytes. `etag`: changes with the content. `sha256`: 64 hexadecimal digits; None where the source has none.
    `git_sha1`: 40 hexadecimal digits of the git blob; None where the source has none.
    """

    name: str
    size: int
    etag: str
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source at one moment. `revision`: the commit of a hub; None where files change one by one."""

    files: tuple[RemoteFile, ...]
    revision: str | None = None


class SourceChanged(Exception):
    """A file changed between the listing and its download. The download begins again with another listing."""


class Remote(Protocol):
    """One address of a source. The methods block: they are called in a thread of the download.

    Both raise SourceUnavailable where the source cannot be reached, and InvalidModel where it refuses for good.
    """

    def list_files(self) -> Listing:
        """Return the files in the folder of the address, and those in folders below it where the source has any."""
        ...

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `offset` on, in chunks of at most CHUNK_BYTES.

        Raises SourceChanged where the file has another etag by now. Closing the iterator closes the connection.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


OpenRemote = Callable[[SourceAddress], Remote]
"""Return the remote of an address; open no connection. Raises InvalidModel for invalid settings of the environment."""
