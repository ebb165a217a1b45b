"""The table of errors."""

from collections.abc import Iterator

import pytest

from app.protocols.shared.errors import (
    ERROR_CODES,
    MethodNotAllowed,
    NotSupported,
    ProtocolError,
    extra_headers,
    to_http,
)
from frameworks.core.errors import FieldError, ModelLoading, ModelUnavailable, Overloaded, RequestError, RoundhouseError


def leaves(kind: type[RoundhouseError]) -> Iterator[type[RoundhouseError]]:
    """Yield the subclasses of `kind` that have no subclass."""
    below = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from leaves(each)


@pytest.mark.parametrize("kind", sorted(set(leaves(RoundhouseError)), key=str))
def test_to_http_knows_every_error(kind: type[RoundhouseError]) -> None:
    error = kind.__new__(kind)
    RoundhouseError.__init__(error, "x: wrong")
    if isinstance(error, FieldError):
        error.field, error.reason = "x", "wrong"
    reply = to_http(error)
    status, code = reply.status, reply.code
    assert (status != 500, reply.message) == (True, "x: wrong")
    assert (reply.field, reply.reason) == (("x", "wrong") if isinstance(error, FieldError) else (None, None))
    assert code in ERROR_CODES[status]
    if issubclass(kind, RequestError | ProtocolError):
        assert 400 <= status < 500 or kind is NotSupported
    if issubclass(kind, ModelUnavailable):
        assert status == 503


def test_to_http_hides_text_of_internal_errors() -> None:
    for error in (ValueError("secret"), KeyError("secret"), RoundhouseError("secret")):
        status, code, message, _, _ = to_http(error)
        assert (status, code) == (500, "internal")
        assert "secret" not in message


def test_extra_headers_belong_to_errors() -> None:
    assert extra_headers(Overloaded("full", retry_after_s=0.01)) == [(b"retry-after", b"1")]
    assert extra_headers(Overloaded("full", retry_after_s=7.6)) == [(b"retry-after", b"8")]
    assert extra_headers(ModelLoading("soon")) == [(b"retry-after", b"1")]
    assert extra_headers(MethodNotAllowed("GET", "/infer", "POST")) == [(b"allow", b"POST")]
    assert extra_headers(ValueError()) == []
