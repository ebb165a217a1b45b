"""Read keys, certificates and the log level again at SIGHUP.

The process of the signal is the server, or the supervisor, which tells its workers.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType

import structlog

from app.auth.key_store import KeyStore
from app.auth.tls import ServerTls
from app.config import ConfigError, LoadedSettings
from app.observability.logs.logs import set_log_level
from app.workers.messages import ReadAgain
from frameworks.models.replicas.control import ControlLink, Workers

log = structlog.get_logger(__name__)


class Reload:
    """Read the files of this process again. Owned by the event loop."""

    def __init__(self, level: str, keys: KeyStore, tls: ServerTls | None) -> None:
        """`level`: of the log, now."""
        self.level = level
        self._keys = keys
        self._tls = tls

    async def read(self, level: str) -> None:
        """Read keys and certificates again, and log from this level on. Files that cannot be used change nothing."""
        if level != self.level:
            self.level = level
            set_log_level(level)
        await self._keys.refresh()
        if self._tls is not None:
            await self._tls.refresh()


class HangupReload:
    """Read again at each SIGHUP, which ends nothing. `run` belongs to the event loop.

    Without a handler the signal would end the process at once, in the middle of its responses.
    """

    def __init__(self, loaded: LoadedSettings, reload: Reload, tell: Callable[[str], None] | None = None) -> None:
        """`tell`: called with the level of the log after each signal. Call it on the main thread."""
        self._loaded = loaded
        self._reload = reload
        self._tell = tell
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requested = asyncio.Event()
        if hasattr(signal, "SIGHUP"):  # Windows has none
            signal.signal(signal.SIGHUP, self._handle)

    async def run(self) -> None:
        """Read again after each signal, until cancelled; also after one that arrived before."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._requested.wait()
                self._requested.clear()
                await self._read_again()
        finally:
            self._loop = None

    async def _read_again(self) -> None:
        log.info("SIGHUP: keys, certificates and logging.level are read again")
        try:
            # The file may be on a network.
            level = await asyncio.to_thread(self._read_level)
        except ConfigError as error:
            level = self._reload.level
            log.error("config not loaded; logging.level stays", value=level, reason=str(error))
        is_changed = level != self._reload.level
        await self._reload.read(level)
        if self._tell is not None:
            self._tell(level)
        if is_changed:
            log.info("logging.level changed", value=level)

    def _read_level(self) -> str:
        """Raises ConfigError."""
        return self._loaded.load_again(os.environ).settings.logging.level

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._loop is None:
            self._requested.set()
        else:
            self._loop.call_soon_threadsafe(self._requested.set)


class WorkerReloads:
    """Tell the workers of a supervisor to read again. Owned by the event loop."""

    def __init__(self, workers: Workers, level: str) -> None:
        """`level`: that workers start with. Made before the first worker is connected."""
        self._workers = workers
        self._level = self._first_level = level
        workers.on_joined(self._send_changed)

    def tell(self, level: str) -> None:
        """Send to all workers; later ones get the level when they join."""
        self._level = level
        for link in self._workers.links.values():
            link.send(ReadAgain(level))

    def _send_changed(self, link: ControlLink) -> None:
        if self._level != self._first_level:
            link.send(ReadAgain(self._level))


def reload_when_told(link: ControlLink, reload: Reload) -> None:
    """Read again in a worker when the supervisor says so."""

    def begin(message: ReadAgain) -> None:
        link.start(reload.read(message.level))

    link.handle(ReadAgain, begin)
