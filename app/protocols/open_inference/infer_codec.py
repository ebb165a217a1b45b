"""The protocol's REST form as a wire format: infer, whose bodies are JSON, bytes, or both, and may be compressed."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from app.inference.pipeline import FindSpec
from app.protocols.codec import (
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
from app.protocols.compression import MIN_COMPRESSED_BYTES, choose_encoding, compress, decompress, parse_encoding
from app.protocols.errors import EmptyBody, NotSupported
from app.protocols.json_reading import SHORT_BYTES, read_document
from app.protocols.open_inference.errors import OpenInferenceErrorResponse, error_body
from app.protocols.open_inference.infer_body import BinaryData, read_question
from app.protocols.open_inference.infer_request import own_name
from app.protocols.open_inference.infer_schemas import OpenInferenceRequest, OpenInferenceResponse
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.open_inference.json_responses import HEADER_LENGTH, check_outputs, elements_one_by_one, write_answer
from app.protocols.open_inference.raw_requests import read_raw_question
from app.protocols.open_inference.short_requests import read_short_question
from app.protocols.routes import Route, RouteDescription
from frameworks.errors import InvalidInput

_FORMS_REMEMBERED = 256
# What the largest number takes, and the first that comes behind the JSON may be one.
_ALIGNED_BYTES = 8
_BYTES_TYPE = b"application/octet-stream"
_LENGTH = re.compile(rb"[0-9]{1,18}")
# Strings are read one by one; so many bytes of them in about a millisecond.
_LONG_STRINGS_BYTES = 16 * 1024
# Numbers are looked through where they are booleans, and widened where they are BF16.
_LONG_BINARY_BYTES = 4 * 1024 * 1024
# Compressed: of more than this a millisecond's worth may come.
_LONG_COMPRESSED_BYTES = 1024
# Bytes are joined, this many of the largest in about a millisecond.
_LONG_BINARY_ELEMENTS = 512 * 1024
# Compressing takes as long as writing more numbers than these.
_LONG_COMPRESSED_ELEMENTS = 4 * 1024


class Form(NamedTuple):
    """How a request's body is made, as its headers say. `header_length`: of the JSON, in bytes; None: all is JSON.

    `encoding`: of the body; `choose_encoding`: of the answer's. None: as it is.
    """

    header_length: int | None = None
    encoding: str | None = None
    choose_encoding: str | None = None


_ALL_JSON = Form()


class InferCodec:
    """As Codec of app/protocols/codec.py, for requests of one form."""

    __slots__ = ("_form", "_max_body_bytes", "lead_bytes")

    def __init__(self, max_body_bytes: int, form: Form = _ALL_JSON) -> None:
        """`max_body_bytes`: also of a body when it is no more compressed."""
        self._max_body_bytes = max_body_bytes
        self._form = form
        # The bytes behind the JSON: views on them are tensors.
        self.lead_bytes = -form.header_length % _ALIGNED_BYTES if form.header_length and form.encoding is None else 0

    def for_headers(self, headers: Sequence[Header]) -> "InferCodec":
        named = dict(headers)
        return _of_headers(
            self._max_body_bytes,
            named.get(b"content-type"),
            named.get(b"content-encoding"),
            named.get(b"accept-encoding"),
            named.get(HEADER_LENGTH),
        )

    def is_long_to_read(self, body: bytes) -> bool:
        length, encoding, _ = self._form
        if encoding is not None:
            return len(body) >= _LONG_COMPRESSED_BYTES
        if length is None:
            return len(body) >= LONG_BYTES
        if length >= LONG_BYTES:
            return True
        end = self.lead_bytes + length
        binary_bytes = len(body) - end
        if binary_bytes < _LONG_STRINGS_BYTES or not length:
            return binary_bytes >= _LONG_BINARY_BYTES
        # An escape may hide the name of the datatype.
        may_be_strings = body.find(b'"BYTES"', 0, end) >= 0 or body.find(b"\\u", 0, end) >= 0
        return may_be_strings or binary_bytes >= _LONG_BINARY_BYTES

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> InferRequest:
        length, encoding, _ = self._form
        if length is None and encoding is None and len(body) < SHORT_BYTES:
            short = read_short_question(body, target, find_spec)
            if short is not None:
                return short
        if encoding is not None:
            body = decompress(body, encoding, self._max_body_bytes)
            if not body:
                raise EmptyBody("the body is empty once it is no more compressed; send a JSON object")
        if length == 0:
            request = read_raw_question(memoryview(body), target, find_spec)
        else:
            binary = BinaryData(None)
            if length is not None:
                lead, end = self.lead_bytes, self.lead_bytes + length
                if end > len(body):
                    raise InvalidInput(
                        HEADER_LENGTH.decode(), f"is {length}, and the body has {len(body) - lead} bytes"
                    )
                body, binary = body[lead:end], BinaryData(memoryview(body)[end:])
            request = read_document(body, lambda document: read_question(document, binary, target, find_spec))
        if request.stream:
            raise NotSupported("inputs.stream: the pieces of a text come from generate_stream; leave it out here")
        check_outputs(request)
        return request

    def is_long_to_write(self, decoded: InferRequest, answer: Any) -> bool:
        if self._form.choose_encoding is not None:
            return elements_of(answer) >= _LONG_COMPRESSED_ELEMENTS
        elements = elements_of(answer)
        return elements >= LONG_ELEMENTS and (
            elements >= _LONG_BINARY_ELEMENTS or elements_one_by_one(decoded, answer) >= LONG_ELEMENTS
        )

    def encode(self, decoded: InferRequest, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        written = write_answer(decoded, answer, context)
        encoding = self._form.choose_encoding
        if encoding is None:
            return written
        body, content_type, headers = (
            written if isinstance(written, EncodedResponse) else (written, b"application/json", [])
        )
        if len(body) < MIN_COMPRESSED_BYTES:
            return written
        about = [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        return EncodedResponse(compress(body, encoding), content_type, headers + about)

    def stream_writer(self, decoded: InferRequest, context: AnswerContext) -> StreamWriter:
        raise AssertionError("a question whose answer comes in pieces is refused")

    def error_body(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return error_body(status, code, own_name(message), request_id)


def routes(max_body_bytes: int) -> tuple[Route, ...]:
    """The paths of infer, and what the OpenAPI document says of them."""
    codec = InferCodec(max_body_bytes)
    text = RouteDescription(
        "open_inference",
        "Run a model on tensors or texts, in JSON or in bytes",
        OpenInferenceRequest,
        OpenInferenceResponse,
        OpenInferenceErrorResponse,
        in_bytes=True,
    )
    return tuple(Route(f"/v2/models/{{name}}{version}/infer", codec, text) for version in ("", "/versions/{version}"))


# Callers send the same headers again and again.
@lru_cache(maxsize=_FORMS_REMEMBERED)
def _of_headers(
    max_body_bytes: int,
    content_type: bytes | None,
    encoding: bytes | None,
    accepted: bytes | None,
    header_length: bytes | None,
) -> InferCodec:
    """Raises UnsupportedMediaType, InvalidInput."""
    # tritonclient names no type at all, or bytes even where it sends nothing but JSON.
    if content_type is not None and not content_type.lower().startswith(_BYTES_TYPE):
        check_content_type(content_type)
    length = None
    if header_length is not None:
        if not _LENGTH.fullmatch(header_length):
            raise InvalidInput(HEADER_LENGTH.decode(), "wants the number of bytes that the body's JSON has")
        length = int(header_length)
    form = Form(
        length,
        None if encoding is None else parse_encoding(encoding),
        None if accepted is None else choose_encoding(accepted),
    )
    return InferCodec(max_body_bytes, form)
