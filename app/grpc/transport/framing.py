"""The wire format of gRPC in a stream (grpc/doc/PROTOCOL-HTTP2.md): messages, their compression, status, timeout."""

import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from app.grpc.call import GrpcError, Header

HEAD_BYTES = 5
"""Of each message: whether it is compressed, and its length."""
_ENCODINGS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
_ACCEPTED = (b"grpc-accept-encoding", b"identity, deflate, gzip")
_STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
_NUMBERS = {name: b"%d" % number for number, name in enumerate(_STATUSES)}
# Headers of the protocol itself, which no handler needs.
_RESERVED = frozenset(
    {b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-message-type"}
)
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TIMEOUT_DIGITS = 8
# Beside the name, so that the trailers fit the header list of every client.
_MAX_MESSAGE_CHARACTERS = 2048
_UNESCAPED = "".join(chr(each) for each in range(0x20, 0x7F) if each != 0x25)

RESPONSE_HEADERS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS = [(b"grpc-status", b"0")]


def status_fields(error: GrpcError) -> list[Header]:
    """Return the trailers that end a call with an error."""
    message = quote(error.message[:_MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace"), safe=_UNESCAPED).encode()
    fields = [(b"grpc-status", _NUMBERS[error.code]), (b"grpc-message", message)]
    return [*fields, _ACCEPTED] if isinstance(error, UnknownEncoding) else fields


def metadata_of(headers: Iterable[Header]) -> list[Header]:
    """Return the client's metadata: its headers without those of HTTP/2 and gRPC. Names that end in `-bin` have base64,
    which is decoded; a value that is none stays as it is.
    """
    return [
        (name, _decoded(value) if name.endswith(b"-bin") else value)
        for name, value in headers
        if name not in _RESERVED and not name.startswith(b":")
    ]


def _decoded(value: bytes) -> bytes:
    try:
        return b64decode(value + b"=" * (-len(value) % 4))
    except Base64Error:
        return value


def timeout_s_of(value: bytes) -> float:
    """Return the seconds of a grpc-timeout, `100m` for example. Raises GrpcError."""
    digits, unit = value[:-1], _UNITS_S.get(value[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _MAX_TIMEOUT_DIGITS:
        raise GrpcError(
            "INVALID_ARGUMENT", "grpc-timeout: expected at most 8 digits and one of H, M, S, m, u and n; correct it"
        )
    return int(digits) * unit


class UnknownEncoding(GrpcError):
    """The client compresses its messages in a way that this server does not know."""

    def __init__(self, encoding: bytes) -> None:
        name = encoding[:50].decode("ascii", "replace")
        super().__init__("UNIMPLEMENTED", f"grpc-encoding: expected identity, deflate or gzip, got {name}; use another")


class ReceivedMessage(NamedTuple):
    """One message. `is_compressed`: its content has to be decompressed."""

    content: bytes
    is_compressed: bool


class MessageReader:
    """Joins the parts of a stream's body to messages.

    `unfinished_bytes` are those of the message whose end has not arrived, with its head.
    """

    __slots__ = ("_is_compressed", "_max_bytes", "_missing_bytes", "_parts", "unfinished_bytes")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one message."""
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self.unfinished_bytes = 0
        # Of the content; None while the head is not complete.
        self._missing_bytes: int | None = None
        self._is_compressed = False

    def read(self, data: bytes) -> list[ReceivedMessage]:
        """Return the messages that end within `data`. Raises GrpcError for one that is too long."""
        if not self.unfinished_bytes and len(data) >= HEAD_BYTES:
            # Nearly always one part is one message.
            length = int.from_bytes(data[1:HEAD_BYTES], "big")
            if len(data) == HEAD_BYTES + length:
                self._check(data[0], length)
                return [ReceivedMessage(data[HEAD_BYTES:], data[0] == 1)]
        return self._read_parts(data)

    def _read_parts(self, data: bytes) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        at = 0
        while at < len(data):
            if self._missing_bytes is None:
                at = self._read_head(data, at)
                if self._missing_bytes is None:
                    break
            part = data[at : at + self._missing_bytes]
            at += len(part)
            self._parts.append(part)
            self._missing_bytes -= len(part)
            self.unfinished_bytes += len(part)
            if not self._missing_bytes:
                content = part if len(self._parts) == 1 else b"".join(self._parts)
                messages.append(ReceivedMessage(content, self._is_compressed))
                self._parts, self.unfinished_bytes, self._missing_bytes = [], 0, None
        return messages

    def _read_head(self, data: bytes, at: int) -> int:
        """Read the head of a message, which may arrive in parts too. Returns where its content begins."""
        head = b"".join(self._parts)
        more = data[at : at + HEAD_BYTES - len(head)]
        self.unfinished_bytes += len(more)
        head += more
        self._parts = [head]
        if len(head) == HEAD_BYTES:
            length = int.from_bytes(head[1:], "big")
            self._check(head[0], length)
            self._is_compressed, self._missing_bytes, self._parts = head[0] == 1, length, []
        return at + len(more)

    def _check(self, flag: int, length: int) -> None:
        if flag > 1:
            raise GrpcError("INTERNAL", f"expected the head of a message, with a flag of 0 or 1, got {flag}")
        if length > self._max_bytes:
            raise too_long(self._max_bytes, f"{length}")


def too_long(max_bytes: int, found: str) -> GrpcError:
    """Return the error of a message that is longer than `max_bytes`."""
    reason = f"expected at most {max_bytes} bytes (server.max_body_bytes), got {found}; send less"
    return GrpcError("RESOURCE_EXHAUSTED", f"message: {reason}")


def decompress(content: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """Decompress a message. Raises GrpcError, also if it is longer than `max_bytes` then."""
    window_bits = _ENCODINGS.get(encoding)
    if window_bits is None:
        raise GrpcError("INTERNAL", "grpc-encoding: expected gzip or deflate for a compressed message, got none")
    stream = zlib.decompressobj(window_bits)
    try:
        message = stream.decompress(content, max_bytes + 1)
    except zlib.error:
        name = encoding.decode()
        raise GrpcError("INVALID_ARGUMENT", f"message: expected content in {name}, got other bytes") from None
    if len(message) > max_bytes:
        raise too_long(max_bytes, "more after decompression")
    if not stream.eof:
        raise GrpcError("INVALID_ARGUMENT", f"message: expected the whole {encoding.decode()} content, got a part")
    return message


def check_encoding(encoding: bytes) -> None:
    """Raise UnknownEncoding for a grpc-encoding that is not known."""
    if encoding != b"identity" and encoding not in _ENCODINGS:
        raise UnknownEncoding(encoding)


def framed(message: bytes) -> bytes:
    """Return a message with its head."""
    return b"\0" + len(message).to_bytes(4, "big") + message
