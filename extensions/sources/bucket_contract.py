"""Define the requests that a service of buckets must answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from frameworks.sources.contract import RemoteFile

CONNECT_TIMEOUT_S: Final = 10
REQUEST_TIMEOUT_S: Final = 60
"""Maximum time of one request, with its answer."""
MAX_NAMES: Final = 1000
"""Maximum number of files and folders of a page of a listing; the services allow no more."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the names directly below a folder of a bucket. `folders`: paths without `/` at their ends.

    `next_token`: where the next page begins; None after the last page.
    """

    files: tuple[RemoteFile, ...]
    folders: tuple[str, ...]
    next_token: str | None


Cause = Literal["settings", "credentials", "network"]
"""Settings stay wrong until a user corrects them. Credentials may come from a service that cannot be reached."""


class BytesChanged(Exception):
    """The answer to a read has bytes of another content, or another number of bytes."""


class Bucket(Protocol):
    """One bucket. The coroutines run on the event loop of fsspec and raise the exceptions of its packages."""

    remedy: str
    """The environment variables that give access, for messages."""

    async def list_page(self, prefix: str, token: str | None) -> Page:
        """Return at most MAX_NAMES names directly below a prefix, which is empty or ends with `/`."""
        ...

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` of the content that has the file's etag. Raises BytesChanged."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def status(self, error: Exception) -> int | None:
        """Return the HTTP status behind an exception; None where there was no answer."""
        ...

    def cause(self, error: Exception) -> Cause:
        """Return the cause of an exception without a status."""
        ...


Entry = Mapping[str, Any]
"""An entry of a listing, as a service returns it."""
