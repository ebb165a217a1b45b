"""Fetch the files of models with an address, in threads, before they are loaded."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import structlog

import frameworks.sources.offline  # noqa: F401 - it reads HF_HUB_OFFLINE before the PyTorch side sets it
from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import Draining
from frameworks.core.progress import Work, working
from frameworks.models.versions.identity import Download
from frameworks.models.versions.version import ModelVersion
from frameworks.sources.contract import Framework

if TYPE_CHECKING:
    from frameworks.sources.store import Fetched, Progress, SourceStore

log = structlog.get_logger(__name__)

Outcome = TypeVar("Outcome")

MAX_DOWNLOADS = 4
"""Maximum downloads that run at the same time; others wait."""
_COUNT_S = 0.5


class Downloads:
    """Owned by the event loop."""

    def __init__(self, open_store: "Callable[[], SourceStore]") -> None:
        """`open_store`: called at the first download. Its modules take 20 ms, which other servers should not pay."""
        self._open_store = cache(open_store)
        self._permits = asyncio.Semaphore(MAX_DOWNLOADS)

    async def fetch(self, version: ModelVersion) -> None:
        """Set the path of a version to the files of its address. Without an address this does nothing.

        The files that the version had at its last load are used again; otherwise the source is listed.

        Raises SourceUnavailable and InvalidModel; Draining where an unload cancels it.
        """
        address = version.model.entry.path
        if not isinstance(address, SourceAddress):
            return
        fetched = version.fetched
        if fetched is None or not await asyncio.to_thread(fetched.folder.is_dir):
            fetched = await self._fetch_unless_cancelled(version, address)
        version.fetched, version.path = fetched, fetched.folder
        version.model.changed()

    async def _fetch_unless_cancelled(self, version: ModelVersion, address: SourceAddress) -> "Fetched":
        from frameworks.sources.store import Progress

        model, progress = version.model, Progress()
        task = asyncio.get_running_loop().create_task(self._fetch(version, address, progress))
        download = model.downloads.running[version.version] = Download(progress, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise Draining.unloaded(model.name) from None
        finally:
            if model.downloads.running.get(version.version) is download:
                del model.downloads.running[version.version]

    async def _fetch(self, version: ModelVersion, address: SourceAddress, progress: "Progress") -> "Fetched":
        with working("download", version.model.name) as work:
            work.phase("waits for other downloads")
            async with self._permits:
                reports = _Reports(version, address, progress, work)
                fetched = await self._fetch_now(version, address, progress, reports)
        reports.end(fetched)
        return fetched

    async def _fetch_now(
        self, version: ModelVersion, address: SourceAddress, progress: "Progress", reports: "_Reports"
    ) -> "Fetched":
        from frameworks.sources.store import Cancelled

        model, store = version.model, self._open_store()
        framework: Framework = "onnx" if model.framework == "onnx" else "pytorch"
        is_cancelled = threading.Event()
        fetching = _run_in_thread(
            f"fetch:{model.name}", lambda: store.fetch(address, framework, progress, is_cancelled)
        )
        try:
            while not (await asyncio.wait([fetching], timeout=_COUNT_S))[0]:
                reports.count()
            return fetching.result()
        except Cancelled as error:
            raise asyncio.CancelledError from error
        finally:
            # The thread ends by itself, and the parts stay for the next download.
            is_cancelled.set()
            fetching.cancel()
            reports.count()


class _Reports:
    """Count the bytes of a download, and log its end. The store logs its start."""

    def __init__(self, version: ModelVersion, address: SourceAddress, progress: "Progress", work: Work) -> None:
        self._version = version
        self._address = str(address)
        self._progress = progress
        self._work = work
        self._counted_bytes = 0
        self._started_s = time.monotonic()
        work.phase("listing the files")

    def count(self) -> None:
        """Count the bytes since the last call. A damaged part is received twice, and counts twice."""
        received, version, progress = self._progress.downloaded_bytes, self._version, self._progress
        if progress.total_bytes:
            self._work.phase("files", progress.total_bytes, "bytes", progress.received_bytes)
        version.model.downloads.received_bytes[version.version] += received - self._counted_bytes
        self._counted_bytes = received

    def end(self, fetched: "Fetched") -> None:
        if fetched.is_cached:
            self._log("model files are in the cache", revision=fetched.revision)
        else:
            self._log(
                "model files downloaded",
                revision=fetched.revision,
                downloaded_bytes=fetched.downloaded_bytes,
                seconds=round(time.monotonic() - self._started_s, 3),
            )

    def _log(self, event: str, **fields: object) -> None:
        log.info(event, model=self._version.model.name, address=self._address, **fields)


def _run_in_thread(name: str, work: Callable[[], Outcome]) -> asyncio.Future[Outcome]:
    """Run `work` in a daemon thread: a download must not keep the process from its end."""
    done: Future[Outcome] = Future()
    done.set_running_or_notify_cancel()  # from here on, the thread alone sets its state

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - the waiter gets it
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)
