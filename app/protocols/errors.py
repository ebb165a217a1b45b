"""The one table from errors to HTTP, and the errors that only a wire can have."""

from math import ceil

from frameworks.errors import (
    DeadlineExceeded,
    Draining,
    InvalidInput,
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    Overloaded,
    RoundhouseError,
    UnknownField,
    VersionNotFound,
)


class WireError(RoundhouseError):
    """What is wrong with a request before anything in it is understood."""


class InvalidJson(WireError):
    """The body is not JSON."""


class EmptyBody(InvalidJson):
    """There is no body at all."""


class NotFound(WireError):
    """No route has this path."""


class MethodNotAllowed(WireError):
    """The route does not take this method. `allowed`: those that it takes."""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed on {path}; allowed: {allowed}")
        self.allowed = allowed


class TooLarge(WireError):
    """The body is larger than server.max_body_bytes."""

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(
            f"the body is larger than server.max_body_bytes, {max_body_bytes} bytes; send less at a time or raise it"
        )


class UnsupportedMediaType(WireError):
    """The body's content-type or content-encoding is none that we read."""


class Forbidden(WireError):
    """The server's rules do not allow this, whoever asks."""


class NotSupported(WireError):
    """A part of a protocol that this server does not have; the message says what it has instead."""


class ClientGone(Exception):
    """The caller closed the connection; there is nobody to answer. Logged and counted as 499."""


STATUS_CLIENT_GONE = 499

# error class → (HTTP status, code, gRPC status code); the first class that an error is an instance of counts.
_TABLE: tuple[tuple[type[RoundhouseError], int, str, str], ...] = (
    (InvalidJson, 400, "invalid_json", "INVALID_ARGUMENT"),
    (InvalidInput, 400, "invalid_input", "INVALID_ARGUMENT"),
    (UnknownField, 400, "unknown_field", "INVALID_ARGUMENT"),
    (InvalidModel, 400, "invalid_input", "INVALID_ARGUMENT"),
    (Forbidden, 403, "forbidden", "PERMISSION_DENIED"),
    (ModelNotFound, 404, "model_not_found", "NOT_FOUND"),
    (VersionNotFound, 404, "version_not_found", "NOT_FOUND"),
    (NotFound, 404, "not_found", "UNIMPLEMENTED"),
    (MethodNotAllowed, 405, "method_not_allowed", "UNIMPLEMENTED"),
    (ModelExists, 409, "model_exists", "ALREADY_EXISTS"),
    (TooLarge, 413, "too_large", "RESOURCE_EXHAUSTED"),
    (UnsupportedMediaType, 415, "unsupported_media_type", "UNIMPLEMENTED"),
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


def to_http(error: BaseException) -> tuple[int, str, str]:
    """Status, code and message for an error. What is not ours is `internal`: its text stays in the log."""
    for kind, status, code, _ in _TABLE:
        if isinstance(error, kind):
            return status, code, error.message
    return _INTERNAL_STATUS, _INTERNAL_CODE, _INTERNAL_MESSAGE


def grpc_code(error: BaseException) -> str:
    """The name of the gRPC status code for an error (grpc/doc/statuscodes.md)."""
    return next((code for kind, _, _, code in _TABLE if isinstance(error, kind)), _INTERNAL_GRPC_CODE)


def is_refusal(status: int) -> bool:
    """Whether the answer says that there was no room or no model, rather than that the request was wrong."""
    return status in (429, 503, 507)


def extra_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """The headers that belong to an error: Retry-After in whole seconds, Allow."""
    if isinstance(error, Overloaded):
        return [(b"retry-after", str(max(1, ceil(error.retry_after_s))).encode())]
    if isinstance(error, ModelLoading):
        return [(b"retry-after", b"1")]
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", error.allowed.encode())]
    return []
