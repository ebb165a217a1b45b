"""The contract of a protocol with the endpoint: decode requests and encode responses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from app.inference.pipeline import DecodedRequest, FindSpec
from app.protocols.errors import ErrorReply, UnsupportedMediaType
from frameworks.generation.types import Piece, Usage
from frameworks.text.tokens import TokenizeAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, ScoreAnswer

Header = tuple[bytes, bytes]

_BODY_HEADERS = (b"content-type", b"content-encoding")
_JSON_HEADER = (b"content-type", b"application/json")

LONG_BYTES = 256 * 1024
"""From here on decoding JSON holds the loop for about a millisecond."""
LONG_ELEMENTS = 32 * 1024
"""And encoding it from here on."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a path names; None where the body has to."""

    model: str | None = None
    version: str | None = None


class AnswerContext(NamedTuple):
    """Members of a response besides the model's output. `created_s`: Unix time of the request, whole seconds."""

    model: str
    version: str
    request_id: str
    latency_ms: float
    created_s: int


ErrorWriter = Callable[[ErrorReply, str], bytes]
"""Codec.error_body: the error and the request id → the body."""


class EncodedResponse(NamedTuple):
    """The body of a 200 that is more than JSON, with the headers that tell of it."""

    body: bytes
    content_type: bytes
    headers: list[tuple[bytes, bytes]]


class StreamWriter(Protocol):
    """One streamed answer. Each method gives the payloads of server-sent events, without `data:` and line ends."""

    def begin(self) -> list[bytes]: ...

    def piece(self, piece: Piece) -> list[bytes]: ...

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        """The last ones, `[DONE]` among them."""
        ...

    def error(self, error: ErrorReply) -> list[bytes]:
        """In the place of `end`."""
        ...


class Codec(Protocol):
    """One protocol's questions of one kind. Holds no state: any thread may call it."""

    @property
    def lead_bytes(self) -> int:
        """Number of arbitrary bytes before the body in the arguments of the methods. They align tensors that follow a
        head of known length.
        """
        ...

    def for_headers(self, headers: Sequence[Header]) -> "Codec":
        """Return the codec of a request with these headers. Raises UnsupportedMediaType, InvalidInput."""
        ...

    def is_long_to_read(self, body: bytes) -> bool:
        """Whether `decode` would hold the loop for about a millisecond."""
        ...

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> DecodedRequest:
        """`find_spec(name, version)` is asked as soon as the name is known, before the rest is read, and raises what
        keeps the model from answering; it is given how to read the request's `timeout_ms`.

        Raises InvalidJson, InvalidInput, UnknownField.
        """
        ...

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        """Whether `encode` would hold the loop for about a millisecond."""
        ...

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        """The body of a 200; plain bytes are JSON."""
        ...

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter: ...

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        """The body of any other answer; `code` is the contract's."""
        ...


class JsonCodec:
    """Common part of codecs that read and write JSON only."""

    __slots__ = ()

    lead_bytes: int = 0

    def for_headers(self, headers: Sequence[Header]) -> Self:
        for header in headers:
            # The usual header is accepted without a call; `check_media_type` knows all others.
            if header[0] in _BODY_HEADERS and header != _JSON_HEADER:
                check_media_type(headers)
        return self

    def is_long_to_read(self, body: bytes) -> bool:
        return len(body) >= LONG_BYTES

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        if type(answer) is dict and len(answer) == 1:
            (value,) = answer.values()
            if isinstance(value, np.ndarray):
                return value.size >= LONG_ELEMENTS
        return elements_of(answer) >= LONG_ELEMENTS


def check_media_type(headers: Sequence[Header]) -> None:
    """Raises UnsupportedMediaType for a body that says it is no JSON in UTF-8, or is compressed.

    A web page may post text/plain and forms to any server without asking it; so these are not read as JSON.
    """
    for name, value in headers:
        if name == b"content-type":
            check_content_type(value)
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise UnsupportedMediaType(
                f'content-encoding "{value.decode("latin-1")[:100]}" is not read; send the body as it is'
            )


def check_content_type(value: bytes) -> None:
    """Raises UnsupportedMediaType for what is no JSON in UTF-8."""
    if value == b"application/json":
        return
    media_type, _, parameters = value.decode("latin-1").lower().partition(";")
    media_type = media_type.strip()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(
            f'content-type is "{media_type[:100]}"; send "content-type: application/json" '
            "(curl: -H 'content-type: application/json')"
        )
    if "charset" in parameters and "utf-8" not in parameters and "utf8" not in parameters:
        raise UnsupportedMediaType(f'content-type has "{parameters.strip()[:100]}"; JSON here is UTF-8')


def elements_of(answer: Any) -> int:
    """How many numbers, strings or labels there are to write, in the main."""
    if isinstance(answer, dict):
        elements = 0
        for value in answer.values():
            elements += value.size if isinstance(value, np.ndarray) else elements_of(value)
        return elements
    if isinstance(answer, np.ndarray):
        return answer.size
    if isinstance(answer, EmbedAnswer):
        return answer.embeddings.size
    if isinstance(answer, ClassifyAnswer):
        return 2 * sum(map(len, answer.predictions))
    if isinstance(answer, ScoreAnswer):
        return 4 * len(answer.scores)
    if isinstance(answer, TokenizeAnswer):
        return len(answer.token_ids)
    return len(answer) if isinstance(answer, list) else 1
