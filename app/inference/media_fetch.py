"""Fetch images and videos that conversations name by URL: from listed hosts, and never from a private network.

A server that fetches what a client names can be made to read its own network (SSRF). So a host is listed by name, each
of its addresses is public or listed too, the connection goes to the address that was checked, and no redirect and no
proxy is followed.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageImage
from frameworks.media.container import DEFAULT_BOUNDS
from frameworks.scheduling.byte_limit import ByteHold
from frameworks.types import ModelSpec

MAX_IMAGE_BYTES = 20 * 1024**2
"""Bytes of a fetched image."""
MAX_VIDEO_BYTES = DEFAULT_BOUNDS.max_bytes
"""Bytes of a fetched video."""
MAX_FETCH_S = 10.0
"""Seconds of a fetch, from its start to its last byte."""
_THREADS = 16
_MAX_URL_CHARACTERS = 2048
_MAX_ADDRESSES = 4
# Addresses of IPv6 that stand for one of IPv4, which may be private: NAT64 and 6to4.
_TRANSLATED = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"), ip_network("2002::/16"))
_CHUNK_BYTES = 1 << 16


class MediaFetcher:
    """Owned by the event loop."""

    def __init__(self, hosts: Sequence[str], max_fetch_s: float = MAX_FETCH_S) -> None:
        """`hosts`: names, patterns such as `*.example.org`, and IP addresses or networks that may be private."""
        self._networks = [network for each in hosts if (network := _network(each)) is not None]
        self._patterns = [each.lower() for each in hosts if _network(each) is None]
        self._max_fetch_s = max_fetch_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="media")
        self._authorities = cache(ssl.create_default_context)

    def close(self) -> None:
        """End the threads; queued fetches are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def fetch(self, conversation: Conversation, spec: ModelSpec | None, hold: ByteHold) -> Conversation:
        """Return a conversation that has URLs, with their files. `hold`: counts their bytes.

        Raises InvalidInput with the field of an image, and Overloaded.
        """
        images = [image for image in conversation.images if image.url]
        for image in images:
            self._check_host(image)
        vision = None if spec is None else spec.vision
        if vision is None or len(conversation.images) > vision.max_images:
            return conversation  # the engine refuses it
        files = {id(image): await self._file_of(image, hold) for image in images}
        messages = tuple(_with_files(message, files) for message in conversation.messages)
        return replace(conversation, messages=messages)

    def _check_host(self, image: MessageImage) -> None:
        """Raise InvalidInput for a URL of a host that is not listed."""
        parts = _parts_of(image)
        host = (parts.hostname or "").lower()
        if not any(fnmatchcase(host, each) for each in self._patterns) and not self._is_listed_address(host):
            raise InvalidInput(
                image.field,
                f"expected base64 or a data URL, got a URL with the host {host[:100]}, which is not in "
                "server.media_hosts; the server fetches no URL of it: send the file itself",
            )

    async def _file_of(self, image: MessageImage, hold: ByteHold) -> bytes:
        kind, max_bytes = ("video", MAX_VIDEO_BYTES) if image.is_video else ("image", MAX_IMAGE_BYTES)
        fetch = _Fetch(_parts_of(image), self._is_allowed, self._authorities, self._max_fetch_s, kind, max_bytes)
        future = asyncio.get_running_loop().run_in_executor(self._threads, fetch.run)
        try:
            async with asyncio.timeout(self._max_fetch_s + 1):
                data = await future
        except TimeoutError:
            raise _failed(image, f"no whole answer within {self._max_fetch_s:g} seconds") from None
        except _FetchFailed as error:
            raise _failed(image, str(error)) from None
        finally:
            fetch.close()
        hold.resize(hold.held_bytes + len(data))
        return data

    def _is_listed_address(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in each for each in self._networks)

    def _is_allowed(self, address: str) -> bool:
        """Whether an address is public, or listed."""
        parsed = ip_address(address.partition("%")[0])
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        is_public = parsed.is_global and not parsed.is_multicast and not _is_translated(parsed)
        return is_public or any(parsed in each for each in self._networks if each.version == parsed.version)


class _FetchFailed(Exception):
    """Why a file could not be fetched."""


@dataclass(slots=True)
class _Fetch:
    """One fetch, on a thread. `close` ends it from another one."""

    parts: SplitResult
    is_allowed: Callable[[str], bool]
    authorities: Callable[[], ssl.SSLContext]
    max_s: float
    kind: str
    max_bytes: int
    connected: socket.socket | None = None
    is_closed: bool = False

    def run(self) -> bytes:
        """Return the file. Raises _FetchFailed."""
        until_s = time.monotonic() + self.max_s
        try:
            return self._read(until_s)
        except (OSError, HTTPException, UnicodeError, ValueError) as error:
            if time.monotonic() >= until_s:
                raise _FetchFailed(f"no whole answer within {self.max_s:g} seconds") from None
            raise _FetchFailed(str(error)[:200] or type(error).__name__) from None
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; a thread that reads from it gets an error."""
        self.is_closed = True
        connected = self.connected
        if connected is not None:
            with suppress(OSError):  # it is closed already
                connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def _read(self, until_s: float) -> bytes:
        host, port = self.parts.hostname or "", self.parts.port or (443 if self.parts.scheme == "https" else 80)
        connected = self._connect(host, port, until_s)
        path = self.parts.path or "/"
        connection = HTTPConnection(host, port)
        connection.sock = connected
        headers = {"Accept": f"{self.kind}/*", "Accept-Encoding": "identity", "User-Agent": "roundhouse"}
        connection.request("GET", f"{path}?{self.parts.query}" if self.parts.query else path, headers=headers)
        with closing(connection), connection.getresponse() as response:
            return self._body(response, connected, until_s)

    def _body(self, response: HTTPResponse, connected: socket.socket, until_s: float) -> bytes:
        """Return the file of a response."""
        if 300 <= response.status < 400:
            raise _FetchFailed("a redirect, which is not followed")
        if response.status != 200:
            raise _FetchFailed(f"the status {response.status}")
        if response.length is not None and response.length > self.max_bytes:
            raise _FetchFailed(f"a file of {response.length} bytes, above {self.max_bytes}")
        received = bytearray()
        while True:
            connected.settimeout(max(0.001, until_s - time.monotonic()))
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                break
            received += chunk
            if len(received) > self.max_bytes:
                raise _FetchFailed(f"a file of more than {self.max_bytes} bytes")
            if time.monotonic() >= until_s:
                raise _FetchFailed(f"no whole answer within {self.max_s:g} seconds")
        if response.length:
            raise _FetchFailed("a file that ends early")
        return bytes(received)

    def _connect(self, host: str, port: int, until_s: float) -> socket.socket:
        """Return a connection to an address of the host. All of its addresses have to be allowed."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not all(self.is_allowed(str(address[0])) for *_, address in found):
            raise _FetchFailed("a host with a private address")
        failure: OSError = OSError("no address")
        for family, kind, protocol, _, address in found[:_MAX_ADDRESSES]:
            connected = socket.socket(family, kind, protocol)
            self.connected = connected
            if self.is_closed:
                raise _FetchFailed("the request has ended")
            try:
                connected.settimeout(max(0.001, until_s - time.monotonic()))
                connected.connect(address)
            except OSError as error:
                connected.close()
                failure = error
                continue
            if self.parts.scheme == "https":
                connected = self.authorities().wrap_socket(connected, server_hostname=host)
                self.connected = connected
            return connected
        raise failure


def _parts_of(image: MessageImage) -> SplitResult:
    """Return the parts of the URL of an image. Raises InvalidInput."""
    try:
        if len(image.url) > _MAX_URL_CHARACTERS or not image.url.isascii() or not image.url.isprintable():
            raise ValueError
        parts = urlsplit(image.url)
        is_valid = parts.hostname and parts.port != 0 and parts.username is None and " " not in image.url
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidInput(
            image.field,
            f"expected a URL of at most {_MAX_URL_CHARACTERS} ASCII characters with a host and without credentials, "
            "got another one; send the file itself",
        )
    return parts


def _failed(image: MessageImage, reason: str) -> InvalidInput:
    host = _parts_of(image).hostname
    return InvalidInput(image.field, f"expected a file at {host}, got {reason}; send the file itself")


def _with_files(message: Message, files: dict[int, bytes]) -> Message:
    if not message.images:
        return message
    images = tuple(
        replace(image, data=files[id(image)], url="") if id(image) in files else image for image in message.images
    )
    return replace(message, images=images)


def _is_translated(address: IPv4Address | IPv6Address) -> bool:
    return address.version == 6 and any(address in each for each in _TRANSLATED)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
