"""Hold the server's certificate for HTTP and gRPC, and read its files again when they change."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Callable

import structlog

from app.config.tls_files import Stamp, TlsFileError, TlsFiles, TlsMaterial, read_material

log = structlog.get_logger(__name__)

CHECK_S = 1.0
"""Seconds between two checks of the files."""
# A file may change again within the resolution of its modification time.
_SETTLED_NS = 2 * 10**9

LOADED, FAILED = "loaded", "failed"


class ServerTls:
    """The current certificate, key and client CA. New handshakes use it; open connections keep theirs.

    `check` replaces the material as a whole, so that readers on other threads see one or the other.
    """

    def __init__(self, files: TlsFiles, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Read the files. `now_ns`: Unix time. Raises TlsFileError."""
        self._files = files
        self._now_ns = now_ns
        self._stamps = files.stamps()
        self._read_ns = now_ns()
        self.material = read_material(files)
        self.reloads = Counter({LOADED: 0, FAILED: 0})
        """Reads of changed files, by outcome."""
        self._reading = asyncio.Lock()
        if files.is_key_exposed:
            log.warning("server.tls_key: every user can read the key; run chmod 600", file=str(files.key))
        self._warn_if_expired()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection over HTTP."""
        return self.material.context

    async def watch(self) -> None:
        """Check the files once a second, for ever."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Run `check` on a thread: files on a network may take long."""
        async with self._reading:
            await asyncio.to_thread(self.check)

    def check(self) -> None:
        """Read the files if they have changed. The last good material stays if they cannot be used."""
        stamps = self._files.stamps()
        if stamps == self._stamps and not self._is_recent(stamps):
            return
        is_new = stamps != self._stamps
        self._stamps, self._read_ns = stamps, self._now_ns()
        try:
            material = read_material(self._files)
        except TlsFileError as error:
            if is_new:
                self.reloads[FAILED] += 1
                log.error("the changed TLS files cannot be used; the last good ones stay", reason=str(error))
            return
        if _pem(material) != _pem(self.material):
            self.material = material
            self.reloads[LOADED] += 1
            log.info("TLS files loaded", expires_s=material.expires_s)
            self._warn_if_expired()

    def _is_recent(self, stamps: tuple[Stamp | None, ...]) -> bool:
        """Whether a file had changed so shortly before it was read that a later change might not show."""
        return any(stamp is not None and self._read_ns - stamp[0] < _SETTLED_NS for stamp in stamps)

    def _warn_if_expired(self) -> None:
        if self.material.expires_s < self._now_ns() / 1e9:
            log.warning(
                "server.tls_certificate: the certificate has expired; renew it", expires_s=self.material.expires_s
            )


def _pem(material: TlsMaterial) -> tuple[bytes, bytes, bytes | None]:
    return material.certificate, material.key, material.client_ca
