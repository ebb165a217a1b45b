"""Define the contract between the endpoint and a protocol: decode requests, encode responses.

Bodies are decompressed before a codec sees them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from app.inference.contract import NamedRequest
from app.protocols.shared.errors import ErrorReply, UnsupportedMediaType
from frameworks.generation.types import GenerateAnswer, Usage
from frameworks.tasks.types import TaskAnswer
from frameworks.text.tokens import SpansAnswer, TokenizeAnswer
from frameworks.types import (
    Array,
    ClassifyAnswer,
    CombinedAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    ScoreAnswer,
    VectorAnswer,
)

Header = tuple[bytes, bytes]

JSON_HEADER = (b"content-type", b"application/json")
"""The usual content-type."""

LONG_BYTES = 256 * 1024
"""From this size on, decoding JSON blocks the loop for about a millisecond."""
LONG_ELEMENTS = 32 * 1024
"""From this size on, encoding JSON blocks the loop for about a millisecond."""

NEVER_LONG_BYTES = 4 * 1024
"""A body below this is never long to read."""
# A body below LONG_BYTES takes as long if it has many objects.
_DENSE_BYTES = 8 * 1024
_DENSE_OBJECTS = 256
# Each is an object with a text.
_ELEMENTS_PER_LOGPROB = 32
_CHARACTERS_PER_ELEMENT = 64


@dataclass(frozen=True, slots=True)
class Target:
    """The model that the path names; None if the body names it. `kind`, `resource`: of another path parameter."""

    model: str | None = None
    version: str | None = None
    kind: str = ""
    resource: str | None = None


class AnswerContext(NamedTuple):
    """The fields of a response besides the model's outputs. `created_s`: Unix time of the request, whole seconds."""

    model: str
    version: str
    request_id: str
    latency_ms: float
    created_s: int


class EncodedResponse(NamedTuple):
    """The body of a 200 that is not plain JSON, with its headers."""

    body: bytes
    content_type: bytes
    headers: list[tuple[bytes, bytes]]


class NamedEvent(NamedTuple):
    """A server-sent event with a name; without line ends."""

    name: bytes
    data: bytes


Payload = bytes | NamedEvent
"""The data of a server-sent event without a name, or both."""


class StreamWriter(Protocol):
    """Write one streamed response. Each method returns payloads of server-sent events, without `data:` or line ends."""

    def begin(self, usage: Usage) -> Sequence[Payload]:
        """Return the first payloads. `usage`: at the first piece."""
        ...

    def piece(self, piece: Any) -> Sequence[Payload]:
        """Return the payloads of a TextDelta, or of the prediction of a task."""
        ...

    def end(self, usage: Usage, latency_ms: float) -> Sequence[Payload]:
        """Return the last payloads, including `[DONE]` where the protocol has it."""
        ...

    def error(self, error: ErrorReply) -> Sequence[Payload]:
        """Return the payloads that replace those of `end`."""
        ...


class Codec(Protocol):
    """Decode and encode one kind of request of one protocol. Stateless: any thread may call it."""

    @property
    def id_header(self) -> bytes:
        """Name of a header with the request id, for errors and streams: of clients that do not read x-request-id."""
        ...

    @property
    def lead_bytes(self) -> int:
        """Number of padding bytes that the methods expect before the body.

        The padding aligns the binary numbers that follow a JSON header of known length.
        """
        ...

    @property
    def views_body(self) -> bool:
        """Whether tensors are views of the body. `read` and `is_long_to_read` then take a memoryview too."""
        ...

    @property
    def reads_headers(self) -> bool:
        """Whether `for_head` looks at more than the type of a body that is not plain JSON."""
        ...

    @property
    def reads_body(self) -> bool:
        """Whether `for_body` chooses a codec. Most codecs do not."""
        ...

    @property
    def streams_lines(self) -> bool:
        """Whether a stream is newline-delimited JSON; else it is server-sent events."""
        ...

    def for_head(self, headers: Sequence[Header], query: bytes) -> "Codec":
        """Return the codec for a request with these headers and this query of the URL, without `?`.

        Called before the body arrives. Raises UnsupportedMediaType, InvalidInput.
        """
        ...

    def for_body(self, body: bytes) -> "Codec":
        """Return the codec for a request with this body, of the codecs that share the path."""
        ...

    def is_long_to_read(self, body: bytes) -> bool:
        """Return whether `read` and the `decode` of its result would block the loop for about a millisecond."""
        ...

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the names in a body; the `decode` of the result decodes the rest.

        Raises InvalidJson, InvalidInput, UnknownField.
        """
        ...

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        """Return whether `encode` would block the loop for about a millisecond."""
        ...

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        """Return the body of a 200; plain bytes are JSON."""
        ...

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter: ...

    def headers_of(self, decoded: Any) -> list[Header]:
        """Return the headers of a streamed response to this request; those of a whole one are part of `encode`."""
        ...

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        """Return the body of an error response."""
        ...


class JsonCodec:
    """Share the parts of the codecs that read and write JSON only."""

    __slots__ = ()

    id_header: bytes = b""
    lead_bytes: int = 0
    views_body: bool = False
    reads_headers: bool = False
    reads_body: bool = False
    streams_lines: ClassVar[bool] = False

    def for_head(self, headers: Sequence[Header], query: bytes) -> Any:
        check_media_type(headers)
        return self

    def for_body(self, body: bytes) -> Any:
        return self

    def headers_of(self, decoded: Any) -> list[Header]:
        return []

    def is_long_to_read(self, body: bytes) -> bool:
        return len(body) >= LONG_BYTES or (len(body) >= _DENSE_BYTES and body.count(b"{") >= _DENSE_OBJECTS)

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        return elements_of(answer) >= LONG_ELEMENTS


def num_logprobs_of(answer: GenerateAnswer) -> int:
    """Return the number of log probabilities, of the tokens and their alternatives."""
    each = (tokens for choice in answer.choices for tokens in (choice.tokens, choice.prompt_tokens))
    # The first token of a prompt has no alternatives.
    return sum(len(tokens) * (1 + len(tokens[-1].top)) for tokens in each if tokens)


def check_media_type(headers: Sequence[Header]) -> None:
    """Raise UnsupportedMediaType if the headers declare a body that is not JSON in UTF-8.

    Browsers let a page post text/plain and forms to any server without its consent, so these are refused.
    """
    for name, value in headers:
        if name == b"content-type":
            check_content_type(value)


def check_content_type(value: bytes) -> None:
    """Raise UnsupportedMediaType unless the value of content-type is JSON in UTF-8."""
    if value == b"application/json":
        return
    media_type, _, parameters = value.decode("latin-1").lower().partition(";")
    media_type = media_type.strip()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(
            f'content-type: expected application/json, got "{media_type[:100]}"; send "content-type: application/json" '
            "(curl: -H 'content-type: application/json')"
        )
    if "charset" in parameters and "utf-8" not in parameters and "utf8" not in parameters:
        raise UnsupportedMediaType(
            f'content-type: expected JSON in UTF-8, got "{parameters.strip()[:100]}"; send UTF-8'
        )


def _vectors_of(answer: VectorAnswer) -> list[Array]:
    if isinstance(answer, CombinedAnswer):
        return [array for each in answer.answers for array in _vectors_of(each)]
    if isinstance(answer, EmbedAnswer):
        return [answer.embeddings]
    return answer.vectors if isinstance(answer, MultiVectorAnswer) else answer.indices + answer.values


def elements_of(answer: Any) -> int:
    """Return the approximate number of numbers, strings and labels to write."""
    if isinstance(answer, GenerateAnswer):
        return _ELEMENTS_PER_LOGPROB * num_logprobs_of(answer)
    if isinstance(answer, dict):
        elements = 0
        for value in answer.values():
            elements += value.size if isinstance(value, np.ndarray) else elements_of(value)
        return elements
    if isinstance(answer, np.ndarray):
        return answer.size
    if isinstance(answer, VectorAnswer):
        return sum(row.size for row in _vectors_of(answer))
    if isinstance(answer, ClassifyAnswer):
        return 2 * sum(map(len, answer.predictions))
    if isinstance(answer, ScoreAnswer):
        return 4 * len(answer.scores)
    if isinstance(answer, TokenizeAnswer):
        return len(answer.token_ids)
    if isinstance(answer, SpansAnswer):
        return 8 * sum(map(len, answer.token_ids))
    return len(answer) if isinstance(answer, list) else _elements_of_sounds(answer)


def _elements_of_sounds(answer: Any) -> int:
    """Return as many numbers as take the time of long texts of base64; 1 for an answer without them."""
    predictions = answer.predictions if isinstance(answer, TaskAnswer) else []
    sounds = [each.get("audio") for each in predictions if isinstance(each, dict)]
    return 1 + sum(len(sound) // _CHARACTERS_PER_ELEMENT for sound in sounds if isinstance(sound, str))
