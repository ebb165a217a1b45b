"""Request bodies within their bounds, and error responses."""

import asyncio
from typing import Any

import pytest

from app.auth.authenticator import read_credentials
from app.auth.errors import Unauthenticated
from app.http.bodies import read_body
from app.protocols.native.codec import NativeCodec
from app.protocols.shared.codec import check_media_type
from app.protocols.shared.errors import ClientGone, EmptyBody, TooLarge, UnsupportedMediaType
from frameworks.core.errors import InvalidInput, Overloaded
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold, ByteLimit
from tests.app.http.receivers import GONE, Messages, receiver
from tests.app.http.requests import http_request

UNLIMITED = ByteLimit(None)


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/infer", "headers": list(headers)}


def read(limit: int, *messages: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    return asyncio.run(read_body(scope(*headers), receiver(*messages), limit, UNLIMITED.hold()))


def test_body_in_any_number_of_parts() -> None:
    assert read(10, part(b"abc")) == b"abc"
    assert read(10, part(b"a", True), part(b"", True), part(b"bc", True), part(b"")) == b"abc"
    assert read(3, part(b"abc")) == b"abc"
    assert read(3, {"type": "http.request", "body": b"abc"}) == b"abc"


def test_body_after_lead_bytes() -> None:
    for messages in ([part(b"abc")], [part(b"a", True), part(b"bc")]):
        assert asyncio.run(read_body(scope(), receiver(*messages), 3, UNLIMITED.hold(), lead_bytes=2)) == b"\0\0abc"
        with pytest.raises(TooLarge):
            asyncio.run(read_body(scope(), receiver(*messages), 2, UNLIMITED.hold(), lead_bytes=2))
    with pytest.raises(EmptyBody):
        asyncio.run(read_body(scope(), receiver(part(b"")), 3, UNLIMITED.hold(), lead_bytes=2))


def test_impossible_body_is_refused() -> None:
    for messages in ([part(b"")], [part(b"", True), part(b"")], [{"type": "http.request"}]):
        with pytest.raises(EmptyBody):
            read(10, *messages)
    with pytest.raises(ClientGone):
        read(10, part(b"a", True), GONE)
    for messages in ([part(b"abcd")], [part(b"ab", True), part(b"cd", True), part(b"never read", True)]):
        with pytest.raises(TooLarge, match="max_body_bytes, 3 bytes"):
            read(3, *messages)


def test_body_declared_too_large_is_not_read() -> None:
    for length in (b"4", b"9" * 1000):
        with pytest.raises(TooLarge):
            read(3, headers=((b"content-length", length),))
    assert read(3, part(b"abc"), headers=((b"content-length", b"3"),)) == b"abc"


class TestCounted:
    def test_body_beyond_limit_is_not_read(self) -> None:
        limit = ByteLimit(10_000)
        with limit.hold() as other, limit.hold() as hold:
            other.grow(5000)
            with pytest.raises(Overloaded, match=r"server\.max_buffered_bytes: expected at most 10000 bytes"):
                # The receiver has no message.
                asyncio.run(read_body(scope((b"content-length", b"5001")), receiver(), 10**6, hold))
            assert limit.held_bytes == 5000

    def test_length_is_counted_as_it_arrives(self) -> None:
        limit = ByteLimit(10_000)

        async def read_half(hold: ByteHold) -> None:
            messages = [part(bytes(4000), True), part(bytes(3000), True)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await read_body(scope((b"content-length", b"9999")), receiver(*messages), 10**6, hold)

        with limit.hold() as hold:
            asyncio.run(read_half(hold))
            assert limit.held_bytes == 7000
        assert limit.held_bytes == 0

    def test_part_beyond_limit_is_refused(self) -> None:
        limit = ByteLimit(10_000)
        with limit.hold() as other, limit.hold() as hold:
            other.grow(5000)
            with pytest.raises(Overloaded):
                asyncio.run(read_body(scope(), receiver(part(bytes(5000), True), part(b"x", True)), 10**6, hold))

    def test_short_body_is_read_in_any_case(self) -> None:
        limit = ByteLimit(10_000)
        with limit.hold() as other, limit.hold() as hold:
            other.grow(10_000)
            body = bytes(UNCOUNTED_BYTES)
            length = (b"content-length", b"%d" % len(body))
            assert asyncio.run(read_body(scope(length), receiver(part(body)), 10**6, hold)) == body


@pytest.mark.parametrize(
    ("header", "is_read"),
    [
        ((b"content-type", b"application/json"), True),
        ((b"content-type", b"APPLICATION/JSON ; charset=UTF-8"), True),
        ((b"content-type", b"application/problem+json"), True),
        ((b"content-type", b"text/plain"), False),
        ((b"content-type", b"application/jsonx"), False),
        ((b"content-type", b"\xff\xfe"), False),
        ((b"content-type", b""), False),
        ((b"content-type", b"application/json; charset=latin-1"), False),
    ],
)
def test_media_type_is_checked(header: tuple[bytes, bytes], is_read: bool) -> None:
    if is_read:
        check_media_type(scope(header)["headers"])
    else:
        with pytest.raises(UnsupportedMediaType):
            check_media_type(scope(header)["headers"])


def test_error_with_any_text_is_sent() -> None:
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    record = http_request((b"x-request-id", b"mine"), send=send)
    asyncio.run(record.refuse(InvalidInput("x", "holds \ud800"), NativeCodec()))
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"x-request-id"]) == (400, b"mine")
    assert sent[1]["body"] == b'{"error":{"code":"invalid_input","message":"x: holds ?","request_id":"mine"}}'
    assert (record.status, record.code) == (400, "invalid_input")
    asyncio.run(record.refuse(TooLarge(10), NativeCodec()))
    assert (b"connection", b"close") in sent[2]["headers"]


def test_error_has_id_header_of_codec() -> None:
    class NamingCodec(NativeCodec):
        id_header = b"request-id"

    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    record = http_request((b"x-request-id", b"mine"), send=send)
    asyncio.run(record.refuse(InvalidInput("x", "is 3"), NamingCodec()))
    assert (b"request-id", b"mine") in sent[0]["headers"]


def test_beginning_of_body_is_checked_before_the_rest() -> None:
    async def read_glancing(*messages: dict[str, Any]) -> tuple[list[bytes], bytes]:
        seen: list[bytes] = []

        def glance(beginning: bytes) -> None:
            seen.append(beginning)
            if beginning.startswith(b"no"):
                raise Overloaded("full", retry_after_s=1)

        return seen, await read_body(scope(), receiver(*messages), 100, UNLIMITED.hold(), glance)

    assert asyncio.run(read_glancing(part(b"no, in one piece"))) == ([], b"no, in one piece")
    assert asyncio.run(read_glancing(part(b"a", True), part(b"no", True), part(b"c"))) == ([b"a"], b"anoc")
    # The receiver blocks after its messages: the refusal precedes the next receive.
    with pytest.raises(Overloaded):
        asyncio.run(read_glancing(part(b"no room", True)))


@pytest.mark.parametrize("names", [(b"x-api-key",), (b"authorization", b"x-api-key")])
def test_only_few_credentials_are_kept(names: tuple[bytes, ...]) -> None:
    """A head has room for thousands; one too many is enough to refuse them."""
    record = http_request(*((name, b"Bearer x") for name in names * 3000))
    assert len(record.credentials) <= 3
    with pytest.raises(Unauthenticated, match="expected one header, got several"):
        read_credentials(record.credentials)
