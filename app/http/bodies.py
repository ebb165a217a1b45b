"""Request bodies: read whole, within a bound on their size."""

import ctypes
from collections.abc import Callable

import numpy as np
from starlette.types import Receive, Scope

from app.http.listener.cycle import Cycle
from app.protocols.shared.codec import Header
from app.protocols.shared.errors import ClientGone, EmptyBody, TooLarge
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold
from frameworks.types import Array

LeaseBody = Callable[[int], Array]
"""Return memory for a body of this length: uint8, writable."""

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, (ctypes.py_object,)

# A longer content-length is too large in any case, and slow to parse.
_MAX_LENGTH_DIGITS = 18
_EMPTY = "body: expected a JSON object, got an empty body; send the request as JSON"


def check_body(body: bytes, max_body_bytes: int) -> None:
    """Raise TooLarge or EmptyBody."""
    if len(body) > max_body_bytes:
        raise TooLarge(max_body_bytes)
    if not body:
        raise EmptyBody(_EMPTY)


async def read_body(
    scope: Scope,
    receive: Receive,
    max_body_bytes: int,
    hold: ByteHold,
    early_reject: Callable[[bytes], None] | None = None,
    fast_path: Cycle | None = None,
    lead_bytes: int = 0,
) -> bytes:
    """Return the whole body behind `lead_bytes` bytes of padding.

    `hold` counts the bytes that have arrived. `early_reject` gets the first part of a body that arrives in several
    parts, before the rest is read; it may raise. Raises TooLarge and Overloaded (before reading, if content-length says
    so), EmptyBody, ClientGone.
    """
    declared_length(scope["headers"], max_body_bytes, hold)
    parts: list[bytes] = []
    collected: list[bytes] = []
    size = 0
    try:
        while True:
            part, has_more = await _receive_part(receive)
            size += len(part)
            total = size + sum(map(len, collected))
            if total > max_body_bytes:
                raise TooLarge(max_body_bytes)
            if total > UNCOUNTED_BYTES:
                # The connection has counted the parts that it collected, up to the first one that did not fit.
                hold.resize(total)
            parts.append(part)
            if not has_more:
                break
            if len(parts) == 1:
                if early_reject is not None:
                    early_reject(part)
                if fast_path is not None:
                    collected = fast_path.collect_body(max_body_bytes - size, hold.try_grow)
        if not total:
            raise EmptyBody(_EMPTY)
        if len(parts) == 1 and not lead_bytes and not collected:
            return parts[0]
        return b"".join([bytes(lead_bytes), *parts, *collected])
    finally:
        # The connection keeps this list until its next request.
        collected.clear()


class BodyBytes:
    """Memory for `read_body_into` that is a bytes object: the kernel writes a body where it is parsed."""

    content = b""
    """The bytes, once `lease` was called. They are read when all of them are written."""

    def lease(self, length: int) -> Array:
        """Return an array on new bytes, uint8. It keeps them alive."""
        self.content = _new_bytes(None, length)
        address = (_address_of(self.content), False)
        self.__array_interface__ = {"data": address, "shape": (length,), "typestr": "|u1", "version": 3}
        return np.asarray(self)


async def read_body_into(
    receive: Receive,
    fast_path: Cycle,
    hold: ByteHold,
    lease: LeaseBody,
    lead_bytes: int,
    length: int,
    early_reject: Callable[[bytes], None] | None = None,
) -> memoryview:
    """Return the whole body of `length` bytes, behind `lead_bytes` bytes of any content, in the memory of `lease`.

    `length`: by `declared_length`, at least LONG_BODY_BYTES. The memory is leased when a part has arrived.
    `early_reject`: as of `read_body`. Raises Overloaded, ClientGone.
    """
    part, has_more = b"", True
    if early_reject is not None or not fast_path.has_part:
        part, has_more = await _receive_part(receive)
        if early_reject is not None:
            early_reject(part)
    body = lease(lead_bytes + length).data
    end = lead_bytes
    while True:
        body[end : end + len(part)] = part
        end += len(part)
        if not has_more:
            hold.resize(length)
            return body
        # Also of a part that was received directly and refused.
        hold.resize(end - lead_bytes)
        if end < len(body) and fast_path.receive_into(body[end:], hold.try_grow):
            end = len(body)
        part, has_more = await _receive_part(receive)


async def _receive_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether there is more. Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def declared_length(headers: list[Header], max_body_bytes: int, hold: ByteHold) -> int | None:
    """Return the length of the body that the headers declare. Raises TooLarge, and Overloaded without room for it."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            if len(value) > _MAX_LENGTH_DIGITS or int(value) > max_body_bytes:
                raise TooLarge(max_body_bytes)
            if int(value) > UNCOUNTED_BYTES:
                hold.check_room(int(value))
            return int(value)
    return None
