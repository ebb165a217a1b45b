"""Map errors to HTTP and gRPC, and define the errors that only a protocol can raise."""

from math import ceil
from typing import NamedTuple, Self

from app.auth.errors import Forbidden, QuotaExceeded, Unauthenticated
from frameworks.core.errors import (
    AdapterExists,
    AdapterNotFound,
    CollectionExists,
    CollectionNotFound,
    DeadlineExceeded,
    Draining,
    FieldError,
    InvalidInput,
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    Overloaded,
    RecordNotFound,
    RoundhouseError,
    SequenceLost,
    SequenceNotFound,
    UnknownField,
    VersionNotFound,
)

MAX_MANAGEMENT_BYTES = 64 * 1024
"""Maximum size of the body of a request that changes or describes the server."""


class ProtocolError(RoundhouseError):
    """The request is refused before its content is interpreted."""


class InvalidJson(ProtocolError):
    """The body is not valid JSON."""


class EmptyBody(InvalidJson):
    """The request has no body."""


class NotFound(ProtocolError):
    """No route has this path."""


class MethodNotAllowed(ProtocolError):
    """The route does not accept this method; the message lists the allowed methods."""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed on {path}; allowed: {allowed}")
        self.allowed = allowed


class TooLarge(ProtocolError):
    """The body is larger than server.max_body_bytes, or than the 64 KiB of a management request."""

    def __init__(
        self, max_bytes: int, limit: str = "server.max_body_bytes", remedy: str = "send less at a time or raise it"
    ) -> None:
        super().__init__(f"the body is larger than {limit}, {max_bytes} bytes; {remedy}")

    @classmethod
    def for_management(cls) -> Self:
        """Return the error for a body above MAX_MANAGEMENT_BYTES."""
        return cls(MAX_MANAGEMENT_BYTES, "the limit of management requests", "send less")


class RequestTimeout(ProtocolError):
    """The body arrives too slowly."""


class UnsupportedMediaType(ProtocolError):
    """The server does not read the body's content-type or content-encoding."""


class NotSupported(ProtocolError):
    """The server does not implement this part of a protocol; the message names the alternative."""


class ClientGone(Exception):
    """The caller closed the connection; the request is logged and counted as 499."""


STATUS_CLIENT_GONE = 499

# (error class, HTTP status, code, gRPC status code); the first class that matches an error applies.
_TABLE: tuple[tuple[type[RoundhouseError], int, str, str], ...] = (
    (InvalidJson, 400, "invalid_json", "INVALID_ARGUMENT"),
    (InvalidInput, 400, "invalid_input", "INVALID_ARGUMENT"),
    (UnknownField, 400, "unknown_field", "INVALID_ARGUMENT"),
    (InvalidModel, 400, "invalid_input", "INVALID_ARGUMENT"),
    (Unauthenticated, 401, "unauthenticated", "UNAUTHENTICATED"),
    (Forbidden, 403, "forbidden", "PERMISSION_DENIED"),
    (ModelNotFound, 404, "model_not_found", "NOT_FOUND"),
    (VersionNotFound, 404, "version_not_found", "NOT_FOUND"),
    (AdapterNotFound, 404, "adapter_not_found", "NOT_FOUND"),
    (CollectionNotFound, 404, "collection_not_found", "NOT_FOUND"),
    (RecordNotFound, 404, "record_not_found", "NOT_FOUND"),
    (SequenceNotFound, 404, "sequence_not_found", "NOT_FOUND"),
    (NotFound, 404, "not_found", "UNIMPLEMENTED"),
    (MethodNotAllowed, 405, "method_not_allowed", "UNIMPLEMENTED"),
    (RequestTimeout, 408, "request_timeout", "DEADLINE_EXCEEDED"),
    (ModelExists, 409, "model_exists", "ALREADY_EXISTS"),
    (AdapterExists, 409, "adapter_exists", "ALREADY_EXISTS"),
    (CollectionExists, 409, "collection_exists", "ALREADY_EXISTS"),
    (SequenceLost, 410, "sequence_lost", "ABORTED"),
    (TooLarge, 413, "too_large", "RESOURCE_EXHAUSTED"),
    (UnsupportedMediaType, 415, "unsupported_media_type", "UNIMPLEMENTED"),
    (QuotaExceeded, 429, "quota_exceeded", "RESOURCE_EXHAUSTED"),
    (NotSupported, 501, "not_supported", "UNIMPLEMENTED"),
    (Overloaded, 503, "overloaded", "RESOURCE_EXHAUSTED"),
    (ModelLoading, 503, "loading", "UNAVAILABLE"),
    (ModelUnloaded, 503, "unloaded", "UNAVAILABLE"),
    (ModelFailed, 503, "model_failed", "UNAVAILABLE"),
    (DeadlineExceeded, 504, "deadline_exceeded", "DEADLINE_EXCEEDED"),
    (Draining, 503, "draining", "UNAVAILABLE"),
    (OutOfMemory, 507, "out_of_memory", "RESOURCE_EXHAUSTED"),
)
_INTERNAL_STATUS, _INTERNAL_CODE, _INTERNAL_GRPC_CODE = 500, "internal", "INTERNAL"
_INTERNAL_MESSAGE = "an error of ours; the log has it under this request id"

ERROR_CODES: dict[int, list[str]] = {}
for _status, _code in (*((entry[1], entry[2]) for entry in _TABLE), (_INTERNAL_STATUS, _INTERNAL_CODE)):
    if _code not in ERROR_CODES.setdefault(_status, []):
        ERROR_CODES[_status].append(_code)


class ErrorReply(NamedTuple):
    """An error as a protocol writes it. `field` and `reason`: the parts of the message of a FieldError."""

    status: int
    code: str
    message: str
    field: str | None = None
    reason: str | None = None

    def with_field(self, field: str) -> "ErrorReply":
        """Return the reply with the field's name in the protocol of the caller."""
        return self._replace(message=f"{field}: {self.reason}", field=field)


def to_http(error: BaseException, sees_paths: bool = False) -> ErrorReply:
    """Return the reply to an error. Other exceptions are `internal`; only the log has their text.

    `sees_paths`: whether the caller may see paths of the machine.
    """
    for kind, status, code, _ in _TABLE:
        if isinstance(error, kind):
            if isinstance(error, FieldError):
                return ErrorReply(status, code, *map(_encodable, (error.public, error.field, error.reason)))
            return ErrorReply(status, code, _encodable(error.message if sees_paths else error.public))
    return ErrorReply(_INTERNAL_STATUS, _INTERNAL_CODE, _INTERNAL_MESSAGE)


def _encodable(text: str) -> str:
    """Replace the parts of a quoted input that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def grpc_code(error: BaseException) -> str:
    """Return the name of the gRPC status code of an error (grpc/doc/statuscodes.md)."""
    return next((code for kind, _, _, code in _TABLE if isinstance(error, kind)), _INTERNAL_GRPC_CODE)


def extra_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Return the headers of an error: Retry-After in whole seconds, Allow, WWW-Authenticate."""
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b'Bearer realm="roundhouse"')]
    if isinstance(error, Overloaded | QuotaExceeded):
        return [(b"retry-after", str(max(1, ceil(error.retry_after_s))).encode())]
    if isinstance(error, ModelFailed) and error.retry_after_s is not None:
        return [(b"retry-after", str(max(1, ceil(error.retry_after_s))).encode())]
    if isinstance(error, ModelLoading):
        return [(b"retry-after", b"1")]
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", error.allowed.encode())]
    return []
