"""Decode and encode infer over REST: bodies of JSON, of bytes or of both; responses compressed or not.

The classes describe the bodies for OpenAPI. `infer_body` decodes by hand, for speed; a property test compares both.
"""

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from app.inference.contract import NamedRequest
from app.protocols.open_inference.errors import OpenInferenceErrorResponse, error_body
from app.protocols.open_inference.infer_body import (
    decode_raw_tensor,
    read_json,
    read_one_tensor,
)
from app.protocols.open_inference.infer_request import with_own_field
from app.protocols.open_inference.infer_response import (
    HEADER_LENGTH,
    check_output_formats,
    encode_response,
    num_json_elements,
)
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.shared.bodies import Body, ResponseBody
from app.protocols.shared.codec import (
    LONG_BYTES,
    LONG_ELEMENTS,
    AnswerContext,
    EncodedResponse,
    Header,
    StreamWriter,
    Target,
    check_content_type,
    elements_of,
)
from app.protocols.shared.compression import MIN_COMPRESSED_BYTES, choose_encoding, compress
from app.protocols.shared.errors import ErrorReply, NotSupported
from app.protocols.shared.json.reading import SHORT_BYTES
from app.protocols.shared.json.shapes import MAX_RANK
from app.protocols.shared.routes import Route, RouteDescription
from frameworks.core.errors import InvalidInput
from frameworks.types import ModelSpec
from memory.buffers import ALIGNMENT_BYTES

_MAX_CACHED_FORMATS = 256
# fmt: off
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
]
# fmt: on
_DATATYPE = Field(examples=["FP32"])
# Of a cache line, and of what an engine process requires: the first tensor is behind the JSON.
_ALIGNED_BYTES = ALIGNMENT_BYTES
_BYTES_TYPE = b"application/octet-stream"
_LENGTH = re.compile(rb"[0-9]{1,18}")
# The limits below each take about a millisecond. Strings are read one by one.
_LONG_STRINGS_BYTES = 16 * 1024
# BOOL is checked and BF16 is widened; all other numbers are views.
_LONG_BINARY_BYTES = 4 * 1024 * 1024
# The bytes of binary outputs are only joined.
_LONG_BINARY_ELEMENTS = 512 * 1024
# Compression takes longer than writing numbers.
_LONG_COMPRESSED_ELEMENTS = 4 * 1024


class OpenInferenceInput(Body):
    """A tensor, in JSON or in bytes behind it."""

    name: str = Field(examples=["image"])
    shape: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_RANK, examples=[[1, 3]])
    datatype: Datatype = _DATATYPE
    data: list[Any] | None = Field(
        None,
        description="Flat, or nested in the given shape. FP16 and BF16 need binary data.",
        examples=[[0, 0.5, 1]],
    )
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: the number of this tensor's bytes behind the JSON, instead of data."
    )


class OpenInferenceOutput(Body):
    """A requested output."""

    name: str
    parameters: dict[str, Any] | None = Field(
        None,
        description="binary_data: return the bytes behind the JSON. classification: return this many of the highest "
        'values of each row, as "value:index" or "value:index:label".',
    )


class OpenInferenceRequest(Body):
    """JSON. With the header inference-header-content-length, JSON of that length and then the bytes of the tensors that
    have a binary_data_size, one after the other. With the length 0, only the bytes of the model's one input.
    """

    id: str | None = Field(None, description="Repeated in the response.")
    inputs: list[OpenInferenceInput]
    outputs: list[OpenInferenceOutput] | None = Field(None, description="Return only these, in this order.")
    parameters: dict[str, Any] | None = Field(
        None,
        description="priority: 1 (first) to 9, 0 for the default. timeout: microseconds. binary_data_output: all "
        "outputs as bytes. Models with a state: sequence_id, an integer or a string, sequence_start, sequence_end. "
        "Embed models: normalize, truncate, dimensions. Generation models: max_tokens and the other "
        "options of generate. Unknown parameters have no effect.",
    )
    model_name: Any = Field(None, description="Ignored; the path names the model.")
    model_version: Any = Field(None, description="Ignored; the path names the version.")


class OpenInferenceTensor(ResponseBody):
    """An output. `data` is flat; NaN and infinities are null."""

    name: str
    datatype: Datatype = _DATATYPE
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: the number of this tensor's bytes behind the JSON."
    )


class OpenInferenceResponse(ResponseBody):
    """JSON. With binary tensors, the header inference-header-content-length gives the length of the JSON."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OpenInferenceTensor]


class BodyFormat(NamedTuple):
    """The form of a body, from the request's headers.

    `json_bytes`: the length of the JSON; None where the whole body is JSON. `answer_encoding`: the compression of the
    response; None: uncompressed.
    """

    json_bytes: int | None = None
    answer_encoding: str | None = None


_ALL_JSON = BodyFormat()


class InferCodec:
    """The Codec of app/protocols/shared/codec.py for requests of one BodyFormat."""

    __slots__ = ("_format", "lead_bytes", "views_body")

    reads_headers = True
    reads_body = False
    streams_lines = False
    id_header = b""

    def __init__(self, body_format: BodyFormat = _ALL_JSON) -> None:
        self._format = body_format
        # Alignment of the bytes behind the JSON: tensors are views of them.
        length = body_format.json_bytes
        self.views_body = length is not None
        self.lead_bytes = -length % _ALIGNED_BYTES if length else 0

    def for_head(self, headers: Sequence[Header], query: bytes) -> "InferCodec":
        named = dict(headers)
        return _codec_for_headers(
            named.get(b"content-type"),
            named.get(b"accept-encoding"),
            named.get(HEADER_LENGTH),
        )

    def for_body(self, body: bytes) -> "InferCodec":
        return self

    def is_long_to_read(self, body: bytes | memoryview) -> bool:
        length = self._format.json_bytes
        if length is None:
            return len(body) >= LONG_BYTES
        if length >= LONG_BYTES:
            return True
        end = self.lead_bytes + length
        binary_bytes = len(body) - end
        if binary_bytes < _LONG_STRINGS_BYTES or not length:
            return binary_bytes >= _LONG_BINARY_BYTES
        # An escape may hide the name of the datatype.
        header = bytes(body[:end])
        may_be_strings = b'"BYTES"' in header or b"\\u" in header
        return may_be_strings or binary_bytes >= _LONG_BINARY_BYTES

    def read(self, body: bytes | memoryview, target: Target) -> NamedRequest:
        if self._format.json_bytes is None and len(body) < SHORT_BYTES:
            short = read_one_tensor(bytes(body), target, _decode_whole)
            if short is not None:
                return short
        named = self._read_any(body, target)
        return named._replace(decode=partial(_decode, named))

    def _read_any(self, body: bytes | memoryview, target: Target) -> NamedRequest:
        length = self._format.json_bytes
        if length == 0:
            return NamedRequest(target.model, target.version, partial(decode_raw_tensor, memoryview(body)))
        if length is None:
            return read_json(bytes(body), None, target)
        lead, end = self.lead_bytes, self.lead_bytes + length
        if end > len(body):
            raise InvalidInput(
                HEADER_LENGTH.decode(), f"expected at most the body's {len(body) - lead} bytes, got {length}"
            )
        return read_json(bytes(body[lead:end]), memoryview(body)[end:], target)

    def is_long_to_write(self, decoded: InferRequest, answer: Any) -> bool:
        if self._format.answer_encoding is not None:
            return elements_of(answer) >= _LONG_COMPRESSED_ELEMENTS
        elements = elements_of(answer)
        return elements >= LONG_ELEMENTS and (
            elements >= _LONG_BINARY_ELEMENTS or num_json_elements(decoded, answer) >= LONG_ELEMENTS
        )

    def encode(self, decoded: InferRequest, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        encoded = encode_response(decoded, answer, context)
        encoding = self._format.answer_encoding
        if encoding is None:
            return encoded
        body, content_type, headers = (
            encoded if isinstance(encoded, EncodedResponse) else (encoded, b"application/json", [])
        )
        if len(body) < MIN_COMPRESSED_BYTES:
            return encoded
        added = [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        return EncodedResponse(compress(body, encoding), content_type, headers + added)

    def stream_writer(self, decoded: InferRequest, context: AnswerContext) -> StreamWriter:
        raise AssertionError("decode refuses requests for a stream")

    def headers_of(self, decoded: InferRequest) -> list[tuple[bytes, bytes]]:
        return []

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(with_own_field(error))


def _decode_whole(body: bytes, target: Target, spec: ModelSpec) -> InferRequest:
    return _decode(read_json(body, None, target), spec)


def _decode(named: NamedRequest, spec: ModelSpec) -> InferRequest:
    request: InferRequest = named.decode(spec)
    if request.stream:
        raise NotSupported("stream: infer returns whole texts; send the request to generate_stream")
    check_output_formats(request)
    return request


def routes() -> tuple[Route, ...]:
    """Return the routes of infer, with their descriptions for the OpenAPI document."""
    codec = InferCodec()
    description = RouteDescription(
        "open_inference",
        "Run a model on tensors or texts, in JSON or in bytes",
        OpenInferenceRequest,
        OpenInferenceResponse,
        OpenInferenceErrorResponse,
        in_bytes=True,
    )
    paths = (f"/v2/models/{{name}}{version}/infer" for version in ("", "/versions/{version}"))
    return tuple(Route(path, codec, description) for path in paths)


# A client sends the same headers with every request.
@lru_cache(maxsize=_MAX_CACHED_FORMATS)
def _codec_for_headers(content_type: bytes | None, accepted: bytes | None, header_length: bytes | None) -> InferCodec:
    """Raises UnsupportedMediaType, InvalidInput."""
    # tritonclient sends no content-type, or application/octet-stream also for JSON.
    if content_type is not None and not content_type.lower().startswith(_BYTES_TYPE):
        check_content_type(content_type)
    length = None
    if header_length is not None:
        if not _LENGTH.fullmatch(header_length):
            given = header_length.decode("latin-1")[:40]
            raise InvalidInput(HEADER_LENGTH.decode(), f'expected the number of bytes of the JSON, got "{given}"')
        length = int(header_length)
    return InferCodec(BodyFormat(length, None if accepted is None else choose_encoding(accepted)))
