"""The codec of every route of Ollama's API: its names of models, its form of errors, and its streams of lines."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.inference.pipeline import FindSpec
from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.chat_turns import is_long_to_parse
from app.protocols.shared.codec import JsonCodec, Target
from app.protocols.shared.errors import ErrorReply
from frameworks.generation.types import GenerateAnswer

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""


@dataclass(frozen=True, slots=True)
class OllamaCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    @property
    def streams_lines(self) -> bool:
        """Streams are newline-delimited JSON."""
        return True

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> BodyRequest:
        return BodyCodec.decode(self, body, target, lambda model, *rest: find_spec(without_tag(model), *rest))

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        if type(answer) is GenerateAnswer and is_long_to_parse(decoded.request, answer):
            return True
        return JsonCodec.is_long_to_write(self, decoded, answer)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error))


def without_tag(model: Any) -> Any:
    """Return the name of a model without the tag `latest`; anything but a name as it is."""
    return model.removesuffix(LATEST) or model if isinstance(model, str) else model


def error_body(error: ErrorReply) -> bytes:
    """Write Ollama's error body."""
    return orjson.dumps({"error": error.message})
