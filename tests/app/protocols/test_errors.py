"""The one table from errors to HTTP."""

from collections.abc import Iterator

import pytest

from app.protocols.errors import (
    ERROR_CODES,
    MethodNotAllowed,
    NotSupported,
    ProtocolError,
    extra_headers,
    is_refusal,
    to_http,
)
from frameworks.errors import ModelLoading, ModelUnavailable, Overloaded, RequestError, RoundhouseError


def leaves(kind: type[RoundhouseError]) -> Iterator[type[RoundhouseError]]:
    """Every error below `kind` that has none below itself."""
    below = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from leaves(each)


@pytest.mark.parametrize("kind", sorted(set(leaves(RoundhouseError)), key=str))
def test_every_error_has_its_place(kind: type[RoundhouseError]) -> None:
    error = kind.__new__(kind)
    error.message = "what was wrong"
    status, code, message = to_http(error)
    assert (status != 500, message) == (True, "what was wrong")
    assert code in ERROR_CODES[status]
    if issubclass(kind, RequestError | ProtocolError):
        assert 400 <= status < 500 or kind is NotSupported
    if issubclass(kind, ModelUnavailable):
        assert status == 503


def test_what_is_not_ours_is_internal_and_keeps_its_text() -> None:
    for error in (ValueError("secret"), KeyError("secret"), RoundhouseError("secret")):
        status, code, message = to_http(error)
        assert (status, code) == (500, "internal")
        assert "secret" not in message


def test_headers_that_belong_to_errors() -> None:
    assert extra_headers(Overloaded("full", retry_after_s=0.01)) == [(b"retry-after", b"1")]
    assert extra_headers(Overloaded("full", retry_after_s=7.6)) == [(b"retry-after", b"8")]
    assert extra_headers(ModelLoading("soon")) == [(b"retry-after", b"1")]
    assert extra_headers(MethodNotAllowed("GET", "/infer", "POST")) == [(b"allow", b"POST")]
    assert extra_headers(ValueError()) == []


def test_a_refusal_is_for_want_of_room_or_model() -> None:
    assert [status for status in (200, 400, 404, 429, 499, 500, 503, 504, 507) if is_refusal(status)] == [429, 503, 507]
