"""Test how admin routes read and describe their bodies."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from app.admin.bodies import describe_optional, read_object, read_optional
from app.admin.models.api import LoadRequest, ShadowShare, UnloadRequest
from app.admin.open_inference.schemas import RepositoryIndexRequest
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, EmptyBody, InvalidJson, TooLarge, UnsupportedMediaType
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.scheduling.byte_limit import ByteLimit
from tests.support.loops import in_loop

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")


def request(body: bytes, *headers: tuple[bytes, bytes]) -> Request:
    """Return a request that arrives in two messages."""
    messages: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": body[:1], "more_body": True},
            {"type": "http.request", "body": body[1:], "more_body": False},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    app = SimpleNamespace(state=SimpleNamespace(byte_limit=ByteLimit(None)))
    return Request({"type": "http", "method": "POST", "path": "/", "headers": list(headers), "app": app}, receive)


@in_loop
async def test_object_is_read_with_and_without_type() -> None:
    for headers in ((), (JSON,)):
        assert await read_object(request(b'{"a": [1]}', *headers), 100) == {"a": [1]}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"", EmptyBody, "empty"),
        (b"{", InvalidJson, "not valid JSON"),
        (b"[]", InvalidInput, "body: expected a JSON object, got an array"),
        (b"null", InvalidInput, "body: expected a JSON object, got null"),
        (b'{"a": "%s"}' % bytes(100), TooLarge, "100 bytes"),
    ],
)
@in_loop
async def test_other_body_is_refused(body: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await read_object(request(body), 100)


@in_loop
async def test_body_above_management_limit_is_refused() -> None:
    body = b'{"a": "b"}'
    assert await read_object(request(body.ljust(MAX_MANAGEMENT_BYTES)), 2**27) == {"a": "b"}
    with pytest.raises(TooLarge, match="the limit of management requests, 65536 bytes"):
        await read_object(request(body.ljust(MAX_MANAGEMENT_BYTES + 1)), 2**27)


@in_loop
async def test_binary_type_is_refused_unless_accepted() -> None:
    with pytest.raises(UnsupportedMediaType):
        await read_object(request(b"{}", BINARY), 100)
    assert await read_object(request(b"{}", BINARY), 100, accepts_binary_type=True) == {}
    with pytest.raises(UnsupportedMediaType):
        await read_object(request(b"{}", (b"content-type", b"text/plain")), 100, accepts_binary_type=True)


@in_loop
async def test_optional_body_may_be_empty_or_null() -> None:
    for body in (b"", b"{}", b'{"version": null}'):
        assert (await read_optional(UnloadRequest, request(body), 100)).version is None
        assert (await read_optional(LoadRequest, request(body), 100)).version is None
    load = await read_optional(LoadRequest, request(b'{"canary": null}'), 100)
    assert load.model_fields_set == {"canary"}


@in_loop
async def test_shadow_share_defaults_to_all_requests() -> None:
    load = await read_optional(LoadRequest, request(b'{"shadow": {"version": "3"}}'), 100)
    assert load.shadow == ShadowShare(version="3", percent=100)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b'{"version": 2}', InvalidInput, "version: expected a string, got 2"),
        (b'{"versoin": "2"}', UnknownField, 'versoin: unknown field; did you mean "version"'),
        (b'{"canary": "2"}', InvalidInput, 'canary: expected an object, got "2"'),
        (b'{"canary": {"version": "2"}}', InvalidInput, "canary.percent: expected a number from 0 to 100, got nothing"),
        (b'{"canary": {"version": "2", "percent": 101}}', InvalidInput, "percent: .* from 0 to 100, got 101"),
        (b'{"canary": {"version": "2", "percent": true}}', InvalidInput, "canary.percent: .* got a boolean"),
        (b'{"shadow": {"version": "2", "share": 1}}', UnknownField, "shadow.share: unknown field"),
    ],
)  # fmt: skip
@in_loop
async def test_invalid_load_request_names_field(body: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await read_optional(LoadRequest, request(body), 100)


@in_loop
async def test_repository_request_ignores_unknown_fields() -> None:
    body = await read_optional(RepositoryIndexRequest, request(b'{"ready": true, "more": 1}'), 100)
    assert body.ready is True
    with pytest.raises(InvalidInput, match="ready: expected a boolean, got null"):
        await read_optional(RepositoryIndexRequest, request(b'{"ready": null}'), 100)


def test_described_body_has_no_references() -> None:
    described = describe_optional(LoadRequest)["requestBody"]
    assert described["required"] is False
    assert "$ref" not in str(described)
    assert described["content"]["application/json"]["schema"]["properties"].keys() == {"version", "canary", "shadow"}
