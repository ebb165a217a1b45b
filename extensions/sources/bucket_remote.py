"""Fetch a model from a bucket: list its folders, and read its files in ranges. `Bucket` is a service of buckets."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel, RoundhouseError, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, Listing, RemoteFile, SourceChanged
from frameworks.sources.served_files import MAX_MODULES, MODULE_FOLDER

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


class Bucket(Protocol):
    """One bucket. The coroutines run on the event loop of fsspec and raise the exceptions of its packages."""

    remedy: str
    """The environment variables that give access, for messages."""

    async def list_page(self, prefix: str, token: str | None) -> Page:
        """Return at most MAX_NAMES names directly below a prefix, which is empty or ends with `/`."""
        ...

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` of the content that has the file's etag. Raises SourceChanged."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def cause(self, error: Exception) -> int | Cause:
        """Return the HTTP status behind an exception, else its cause."""
        ...


Entry = Mapping[str, Any]
"""An entry of a listing, as a service returns it."""

_MIN_RANGE_BYTES: Final = 1 << 16
"""Range of the slowest source: 64 KiB in REQUEST_TIMEOUT_S, about 1 KiB a second."""
_MAX_RANGE_BYTES: Final = 8 * CHUNK_BYTES
_SHORT_S: Final = 0.5
_LONG_S: Final = 2.0
"""The next range is larger after a request of less than _SHORT_S, and smaller after one of more than _LONG_S."""
_MAX_PAGES: Final = 20
"""Pages may have fewer names than were asked for."""

_Answer = TypeVar("_Answer")


class BucketRemote:
    """One address of a bucket.

    A file is read in ranges, each of which is checked against the etag of the listing. Their size follows the speed
    of the source, so that a request takes about a second.
    """

    def __init__(
        self,
        address: SourceAddress,
        open_bucket: Callable[[SourceAddress], Bucket],
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`open_bucket`: called by the first request, because some packages look for credentials in the network."""
        self._address = address
        self._open_bucket = open_bucket
        self._opened: Bucket | None = None
        self._request_timeout_s = request_timeout_s

    def list_files(self) -> Listing:
        """Return the files of the address's folder and of the folders below it that hold parts of a model.

        For an `.onnx` file: the files of its folder, and of the folder above unless that has more than MAX_NAMES names.
        """
        files = self._files_around(self._address.graph) if self._address.graph else self._files_below()
        if not files:
            raise InvalidModel(f"{self._address}: expected the folder or .onnx file of a model, got no files")
        return Listing(tuple(files))

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `offset` on, in chunks of at most CHUNK_BYTES. Raises SourceChanged."""
        length = CHUNK_BYTES
        while offset < file.size:
            began = time.monotonic()
            try:
                content = self._read_range(file, offset, min(offset + length, file.size))
            except TimeoutError:
                if length == _MIN_RANGE_BYTES:
                    raise self._unavailable(f"less than {_MIN_RANGE_BYTES} bytes in a minute") from None
                length = _MIN_RANGE_BYTES
                continue
            seconds = time.monotonic() - began
            for start in range(0, len(content), CHUNK_BYTES):
                yield content[start : start + CHUNK_BYTES]
            offset += len(content)
            if seconds < _SHORT_S:
                length = min(2 * length, _MAX_RANGE_BYTES)
            elif seconds > _LONG_S:
                length = max(length // 2, _MIN_RANGE_BYTES)

    def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            with suppress(Exception):  # the event loop ends with the process, and the connections with it
                self._run(self._opened.close)

    @property
    def _bucket(self) -> Bucket:
        """Raises InvalidModel where the settings of the environment are invalid."""
        if self._opened is None:
            try:
                self._opened = self._open_bucket(self._address)
            except RoundhouseError:
                raise
            except (ConnectionError, TimeoutError) as error:
                raise self._unavailable(type(error).__name__) from None
            except Exception as error:  # noqa: BLE001 - of the packages and their dependencies
                raise InvalidModel(
                    f"{self._address}: expected valid settings in the environment, got {type(error).__name__}; "
                    "correct them"
                ) from None
        return self._opened

    def _files_below(self) -> list[RemoteFile]:
        """Return the files of the address's folder, and of the folders below it that hold parts of a model."""
        files, folders = self._folder(self._address.path)
        files += self._modules(files, folders)
        for path in folders:
            if path.rpartition("/")[2] == "onnx":
                files += self._folder(path)[0]
        return files

    def _files_around(self, graph: str) -> list[RemoteFile]:
        """Return the files beside a graph, and of the folder above it."""
        folder = graph.rpartition("/")[0]
        files, folders = self._folder(folder)
        if graph not in {file.name for file in files}:
            raise InvalidModel(f"{self._address}: expected an .onnx file in the bucket, got none; check its name")
        files += self._modules(files, folders)
        names = self._list(folder.rpartition("/")[0]) if folder else None
        if names is not None:
            files += [*names[0], *self._modules(*names)]
        return files

    def _modules(self, files: list[RemoteFile], folders: list[str]) -> list[RemoteFile]:
        """Return the files of the folders of a sentence-transformers model, which modules.json describes."""
        if not any(file.name.rpartition("/")[2] == "modules.json" for file in files):
            return []
        paths = [each for each in folders if MODULE_FOLDER.fullmatch(each.rpartition("/")[2])]
        return [file for path in paths[:MAX_MODULES] for file in self._folder(path)[0]]

    def _folder(self, path: str) -> tuple[list[RemoteFile], list[str]]:
        names = self._list(path)
        if names is None:
            raise InvalidModel(
                f"{self._address}: expected a folder of at most {MAX_NAMES} names, got more in "
                f'"{path or self._address.repository}"; give the model a folder of its own'
            )
        return names

    def _list(self, path: str) -> tuple[list[RemoteFile], list[str]] | None:
        """Return the files and folders directly below a path; None for more than MAX_NAMES."""
        files: list[RemoteFile] = []
        folders: list[str] = []
        token = None
        for _ in range(_MAX_PAGES):
            page = self._call(self._bucket.list_page, f"{path}/" if path else "", token)
            files += page.files
            folders += page.folders
            token = page.next_token
            if token is None or len(files) + len(folders) > MAX_NAMES:
                break
        return (files, folders) if token is None and len(files) + len(folders) <= MAX_NAMES else None

    def _read_range(self, file: RemoteFile, start: int, stop: int) -> bytes:
        content = self._call(self._bucket.read, file, start, stop, is_read=True)
        if len(content) != stop - start:
            raise self._unavailable(f"{len(content)} bytes of {stop - start}")
        return content

    def _call(self, request: Callable[..., Awaitable[_Answer]], *arguments: Any, is_read: bool = False) -> _Answer:
        """Send a request once; the store repeats it after SourceUnavailable.

        Raises TimeoutError for a read that takes too long, so that the next one is smaller.
        """
        try:
            return self._run(request, *arguments)
        except SourceChanged:
            raise
        except Exception as error:
            if is_read and isinstance(error, TimeoutError):
                raise
            raise self._failure(error, is_read=is_read) from None

    def _run(self, request: Callable[..., Awaitable[_Answer]], *arguments: Any) -> _Answer:
        """Run a coroutine on the event loop of fsspec."""
        from fsspec.asyn import get_loop, sync

        answer: _Answer = sync(get_loop(), request, *arguments, timeout=self._request_timeout_s)
        return answer

    def _failure(self, error: Exception, *, is_read: bool) -> Exception:
        """Return the error of the domain. Texts of the packages may hold keys, so that none is repeated."""
        status, got = self._bucket.cause(error), type(error).__name__
        if status == "network":
            return self._unavailable(got)
        if isinstance(status, str):
            kind = InvalidModel if status == "settings" else SourceUnavailable
            return kind(f"{self._address}: expected valid {status}, got {got}; {self._bucket.remedy}")
        if is_read and status in (404, 412, 416):
            return SourceChanged(f"{self._address}")
        if status in (408, 429) or status >= 500:
            return self._unavailable(f"HTTP {status}")
        if status == 404:
            return InvalidModel(f"{self._address}: expected a bucket that exists, got HTTP 404; check its name")
        return InvalidModel(
            f"{self._address}: expected a bucket that this server may read, got HTTP {status}; {self._bucket.remedy}"
        )

    def _unavailable(self, got: str) -> SourceUnavailable:
        return SourceUnavailable(f"{self._address}: expected an answer of the bucket, got {got}; load the model again")
