"""Fetch models from sources into `models.cache_dir`, each version once for all processes of this machine."""

import errno
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import Framework, OpenRemote, SourceChanged
from frameworks.sources.download import RETRY_DELAYS_S, Cancelled, Downloader, Progress, part_bytes
from frameworks.sources.remotes import open_remote
from frameworks.sources.served_files import Selection, listed_framework, select_files
from frameworks.sources.store_folders import AddressFolder, Fetched, version_name
from memory.sizes import format_size

__all__ = ["Cancelled", "Fetched", "Progress", "SourceStore"]

log = structlog.get_logger(__name__)

_LISTINGS = 3
# Without a network, a model in the cache starts soon.
_CACHED_RETRIES = 1
_LOCK_POLL_S = 0.2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class SourceStore:
    """The fetched models below `<cache_dir>/sources`. Thread-safe."""

    def __init__(
        self,
        cache_dir: Path,
        max_download_bytes: int,
        open_remote: OpenRemote = open_remote,
        retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    ) -> None:
        """`cache_dir`: created at the first download. `max_download_bytes`: of one version."""
        self._root = cache_dir.absolute() / "sources"
        self._max_bytes = max_download_bytes
        self._open_remote = open_remote
        self._delays_s = retry_delays_s

    def folder(self, address: SourceAddress) -> Path:
        """Return the folder of an address in the cache, which may not exist. Touches no file and no network."""
        return AddressFolder(self._root, address).path

    def fetch(
        self,
        address: SourceAddress,
        framework: Framework | None,
        progress: Progress | None = None,
        is_cancelled: threading.Event | None = None,
    ) -> Fetched:
        """Return the folder of the model's files, and download those that are missing. Blocks.

        A commit that is cached needs no network; without a network the cached version of the address is returned.
        Raises SourceUnavailable, InvalidModel and Cancelled. The parts of a download are kept for the next one.
        """
        folder = AddressFolder(self._root, address)
        cached = folder.named(framework)
        if cached is not None and address.commit is not None:
            return cached
        progress, is_cancelled = progress or Progress(), is_cancelled or threading.Event()
        with closing(self._open_remote(address)) as remote:
            downloader = Downloader(remote, progress, is_cancelled, self._delays_s)
            return _Fetch(address, framework, folder, downloader, self._max_bytes).run(cached)

    def framework(self, address: SourceAddress) -> Framework:
        """Return the framework that `fetch` chooses; without a network that of the cached version. Blocks.

        Raises SourceUnavailable and InvalidModel.
        """
        cached = AddressFolder(self._root, address).named(None)
        if cached is not None and address.commit is not None:
            return cached.framework
        with closing(self._open_remote(address)) as remote:
            downloader = Downloader(remote, Progress(), threading.Event(), self._delays_s)
            try:
                listing = downloader.list_files(max_retries=_CACHED_RETRIES if cached else None)
            except SourceUnavailable:
                if cached is None:
                    raise
                return cached.framework
            return listed_framework(address, listing.files)


class _Fetch:
    """One fetch of one address."""

    def __init__(
        self,
        address: SourceAddress,
        framework: Framework | None,
        folder: AddressFolder,
        downloader: Downloader,
        max_bytes: int,
    ) -> None:
        self._address = address
        self._framework = framework
        self._folder = folder
        self._downloader = downloader
        self._downloaded_before = downloader.progress.downloaded_bytes
        self._max_bytes = max_bytes

    def run(self, cached: Fetched | None) -> Fetched:
        """Fetch the files that the source lists; return `cached` where the source does not answer."""
        try:
            version = self._listed_version(max_retries=_CACHED_RETRIES if cached else None)
        except SourceUnavailable as error:
            if cached is None:
                raise SourceUnavailable(
                    f"{error.message}; the cache has no copy: connect, or fetch it once with `roundhouse serve`",
                    error.retry_after_s,
                ) from error
            log.warning(
                "source does not answer; the cached version is used", source=str(self._address), error=error.message
            )
            version = cached
        return replace(version, downloaded_bytes=self._downloader.progress.downloaded_bytes - self._downloaded_before)

    def _listed_version(self, max_retries: int | None) -> Fetched:
        """List and download until the source does not change meanwhile."""
        for _ in range(_LISTINGS):
            listing = self._downloader.list_files(max_retries)
            try:
                selection = select_files(self._address, listing.files, self._framework, self._downloader.read_small)
                with _storage_errors():
                    return self._version(selection, listing.revision)
            except SourceChanged as error:
                log.info(
                    "source changed during its download; listing it again", source=str(self._address), error=str(error)
                )
        raise SourceUnavailable(
            f"{self._address}: expected files that do not change, got a change in {_LISTINGS} downloads; load it later"
        )

    def _version(self, selection: Selection, revision: str | None) -> Fetched:
        """Return the version of a selection; download it where it is absent."""
        if selection.total_bytes > self._max_bytes:
            raise InvalidModel(
                f"{self._address}: expected at most models.max_download_bytes = {format_size(self._max_bytes)}, "
                f"got {format_size(selection.total_bytes)}; raise it or serve a smaller model"
            )
        name = version_name(selection)
        frameworks = dict.fromkeys((self._framework, selection.framework))
        version = self._folder.version(name)
        if version is not None:
            self._folder.name_version(name, revision, frameworks)
            return replace(version, revision=revision)
        self._folder.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            version = self._folder.version(name) or self._download(name, selection, revision)
            self._folder.name_version(name, revision, frameworks)
            self._folder.prune(name)
        return replace(version, revision=revision)

    def _download(self, name: str, selection: Selection, revision: str | None) -> Fetched:
        partial = self._folder.partial(name)
        self._folder.reuse(name, selection)
        missing = selection.total_bytes - part_bytes(selection, partial)
        free = shutil.disk_usage(self._folder.path).free
        if missing > free:
            raise InvalidModel(_no_space(f"{missing - free} bytes"))
        partial.mkdir(parents=True, exist_ok=True)
        log.info("downloading", source=str(self._address), files=len(selection.files), bytes=missing)
        self._downloader.fetch(selection, partial)
        return self._folder.publish(name, self._address, selection, revision)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the address. The system releases it when the process dies."""
        lock = FileLock(self._folder.lock_file)
        is_logged = False
        while True:
            try:
                lock.acquire(timeout=0)
                break
            except Timeout:
                if not is_logged:
                    log.info("waiting for another download of this model", source=str(self._address))
                is_logged = True
                self._downloader.pause(_LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Turn errors of the file system into InvalidModel. The parts that are written stay."""
    try:
        yield
    except NotImplementedError as error:  # of filelock
        raise InvalidModel(
            "models.cache_dir: expected a file system with locks, got none; name another folder"
        ) from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise InvalidModel(_no_space("disk space")) from error
        raise InvalidModel(
            f"models.cache_dir: expected a folder to write to, got {error.strerror or type(error).__name__}; "
            "make it writable or name another folder"
        ) from error


def _no_space(needed: str) -> str:
    return f"models.cache_dir: expected space for the download, got no space left; free {needed} and load it again"
