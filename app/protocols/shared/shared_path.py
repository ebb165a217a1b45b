"""A path that several kinds of requests share. A body with a field of its own belongs to the second of two codecs."""

import re
from typing import Any

from app.inference.pipeline import FindSpec
from app.protocols.shared.codec import AnswerContext, Codec, EncodedResponse, JsonCodec, StreamWriter, Target
from app.protocols.shared.errors import ErrorReply

SEARCHED_BYTES = 64 * 1024
"""The field is searched in this part of a body only, because the search holds the loop."""


class SharedPathCodec(JsonCodec):
    """The Codec of a shared path until the body has arrived. `for_body` returns the codec of the request."""

    __slots__ = ("_codec", "_is_other", "_other")

    reads_body = True

    def __init__(self, codec: Codec, other: Codec, field: str) -> None:
        """`codec`: writes the errors of requests without a body. `other`: of bodies with the `field`."""
        self._codec = codec
        self._other = other
        # A string ends before the colon, or its quotes are escaped: this is the name of a member.
        self._is_other = re.compile(rb'"%b"\s*:' % re.escape(field.encode())).search

    def for_body(self, body: bytes) -> Codec:
        codec = self._codec if self._is_other(body, 0, SEARCHED_BYTES) is None else self._other
        return codec.for_body(body)

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> Any:
        return self.for_body(body).decode(body, target, find_spec)

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        raise AssertionError("for_body returns the codec that encodes")

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter:
        raise AssertionError("for_body returns the codec that streams")

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return self._codec.error_body(error, request_id)
