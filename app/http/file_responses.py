"""Send files from the disk, whole or in ranges, without reading them on the event loop (RFC 9110, sections 13, 14)."""

import asyncio
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from app.http.disconnects import DisconnectWatcher, watched
from app.protocols.shared.codec import Header
from app.protocols.shared.errors import ClientGone
from frameworks.core.errors import Overloaded

MOST_TRANSFERS = 64
"""Files that one sender sends at once. Each takes a file descriptor and two parts of memory."""
_PART_BYTES = 256 * 1024
_RETRY_AFTER_S = 2.0
_RANGE = re.compile(rb"bytes=\s*([0-9]{0,19})-([0-9]{0,19})\s*", re.IGNORECASE)


class OpenedFile(NamedTuple):
    """A regular file that is open for reading. `modified_ns`: of the inode that is open."""

    descriptor: int
    size: int
    modified_ns: int


def open_regular(file: Path) -> OpenedFile:
    """Open a regular file that is no link; close its descriptor. Blocks. Raises OSError."""
    # A link that replaced the file since it was found is not followed; a pipe would block.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{file}: not a regular file")
    return OpenedFile(descriptor, state.st_size, state.st_mtime_ns)


class FileSender:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self._watcher = DisconnectWatcher()
        self._sending = 0

    async def send(
        self, file: OpenedFile, etag: bytes, headers: list[Header], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request with an open file: all of it, a range, or nothing if the client has it.

        `headers`: further ones. Raises Overloaded beyond MOST_TRANSFERS.
        """
        record, given = scope["record"], scope["headers"]
        headers = [*headers, (b"etag", etag), (b"accept-ranges", b"bytes")]
        if is_known(etag, given):
            await send_whole(send, 304, headers, b"")
            return
        begin, end, status = 0, file.size, 200
        wanted = wanted_range(etag, file.size, given)
        if wanted is not None:
            begin, end = wanted
            status = 206
            headers.append((b"content-range", b"bytes %d-%d/%d" % (begin, end - 1, file.size)))
        headers.append((b"content-length", b"%d" % (end - begin)))
        if record.method == "HEAD" or begin == end:
            await send_whole(send, status, headers, b"")
            return
        if self._sending >= MOST_TRANSFERS:
            raise Overloaded(
                f"files: expected at most {MOST_TRANSFERS} files that are sent at once, got one more; send the request "
                "again later",
                _RETRY_AFTER_S,
            )
        self._sending += 1
        try:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            async with watched(self._watcher, receive):
                await _send_parts(send, file, begin, end)
        except ClientGone:
            record.code = "client_gone"  # the response has begun: there is nothing to answer
        finally:
            self._sending -= 1


async def _send_parts(send: Send, file: OpenedFile, begin: int, end: int) -> None:
    """Send a range of a file. The next part is read when the connection has room for it."""
    while begin < end:
        part = await asyncio.to_thread(os.pread, file.descriptor, min(end - begin, _PART_BYTES), begin)
        if not part:
            break  # cut meanwhile: the connection is closed, as its length is wrong
        begin += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": begin < end})


async def send_whole(send: Send, status: int, headers: list[Header], content: bytes) -> None:
    """Send a response in one write."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def header_values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """Return all values of a header."""
    return [value for each, value in headers if each == name]


def is_known(etag: bytes, headers: Iterable[Header]) -> bool:
    """Whether If-None-Match names the content. Proxies mark tags as weak."""
    values = header_values(headers, b"if-none-match")
    tags = [tag.strip().removeprefix(b"W/") for value in values for tag in value.split(b",")]
    return etag in tags or b"*" in tags


def wanted_range(etag: bytes, size: int, headers: Iterable[Header]) -> tuple[int, int] | None:
    """Return the begin and the end of the wanted bytes.

    None for the whole file: without a range, for several ranges, for one that is not valid or has no byte of the file,
    and where If-Range names another content. A server may ignore any range.
    """
    headers = list(headers)
    values, conditions = header_values(headers, b"range"), header_values(headers, b"if-range")
    matched = _RANGE.fullmatch(values[0]) if len(values) == 1 else None
    if matched is None or any(condition != etag for condition in conditions):
        return None
    first, last = matched[1], matched[2]
    if not first:
        return (max(0, size - int(last)), size) if last and int(last) and size else None
    if last and int(last) < int(first):
        return None
    begin = int(first)
    return (begin, min(int(last) + 1, size) if last else size) if begin < size else None
