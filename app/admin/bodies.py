"""Read the JSON bodies of admin routes, and describe them for OpenAPI."""

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from pydantic import Field, WithJsonSchema

from app.http.bodies import read_body
from app.protocols.shared import bodies
from app.protocols.shared.bodies import Body
from app.protocols.shared.codec import check_media_type
from app.protocols.shared.compression import body_encoding, decompress
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, EmptyBody, InvalidJson, TooLarge
from app.protocols.shared.json.body import describe_type
from frameworks.core.errors import InvalidInput

if TYPE_CHECKING:
    from fastapi import Request

Kind = TypeVar("Kind", bound=Body)

MAX_DRAIN_S = 86_400
_Seconds = Annotated[
    int | float,
    Field(ge=0, le=MAX_DRAIN_S),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_DRAIN_S}),
]
DrainTimeout = Annotated[
    _Seconds | None,
    Field(
        description="Seconds after which requests in progress are ended with the error `draining`. Default: an unload "
        "waits for all of them."
    ),
]

# Triton's asyncio clients declare this type for a body of JSON. Browsers send it only after a CORS preflight.
_BINARY = (b"content-type", b"application/octet-stream")


async def read_object(request: "Request", max_body_bytes: int, accepts_binary_type: bool = False) -> dict[str, Any]:
    """Return the JSON object in the body. `accepts_binary_type`: also with content-type application/octet-stream.

    Raises UnsupportedMediaType, TooLarge (also above MAX_MANAGEMENT_BYTES), EmptyBody, InvalidJson, InvalidInput,
    Overloaded.
    """
    headers = request.scope["headers"]
    check_media_type([header for header in headers if header != _BINARY] if accepts_binary_type else headers)
    encoding = body_encoding(headers)
    most_bytes = min(max_body_bytes, MAX_MANAGEMENT_BYTES)
    try:
        with request.app.state.byte_limit.hold() as hold:
            content = await read_body(request.scope, request.receive, most_bytes, hold)
            if encoding is not None:
                content = decompress(content, encoding, most_bytes, hold.grow)
    except TooLarge:
        if max_body_bytes <= MAX_MANAGEMENT_BYTES:
            raise
        raise TooLarge.for_management() from None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("body", f"expected a JSON object, got {describe_type(value)}")
    return value


async def read_optional(
    kind: type[Kind], request: "Request", max_body_bytes: int, accepts_binary_type: bool = False
) -> Kind:
    """Return the validated body; an omitted body has the defaults of all fields.

    Raises as `read_object`, except EmptyBody, and UnknownField.
    """
    try:
        fields = await read_object(request, max_body_bytes, accepts_binary_type)
    except EmptyBody:
        fields = {}
    return bodies.read_body(kind, fields)


def describe_optional(kind: type[Body], **media: Any) -> dict[str, Any]:
    """Describe a body that may be omitted. Parameters and result as of `describe_body`."""
    return describe_body(bodies.schema_of(kind), required=False, **media)


def describe_body(schema: dict[str, Any], required: bool = True, **media: Any) -> dict[str, Any]:
    """Return `openapi_extra` of a route with this body. `media`: more members of its media type, as `examples`."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema, **media}}}}
