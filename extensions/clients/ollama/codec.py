"""The codecs of Ollama's API: what every route has in common, and /api/embed with the older /api/embeddings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from app.inference.contract import NamedRequest
from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.codec import AnswerContext, Target
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.texts import check_dimensions, rename_text, to_texts
from app.protocols.shared.json.output import array_to_json
from extensions.clients.ollama.requests import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    check_options_of_vectors,
    ignored_of_vectors,
)
from frameworks.types import EmbedAnswer, ModelSpec, TextRequest

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""


@dataclass(frozen=True, slots=True)
class OllamaCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    streams_lines: ClassVar[bool] = True
    """Streams are newline-delimited JSON."""

    def read(self, body: bytes, target: Target) -> NamedRequest:
        named = BodyCodec.read(self, body, target)
        return named._replace(model=without_tag(named.model))

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error))


def without_tag(model: Any) -> Any:
    """Return the name of a model without the tag `latest`; anything but a name as it is."""
    return model.removesuffix(LATEST) or model if isinstance(model, str) else model


def error_body(error: ErrorReply) -> bytes:
    """Write Ollama's error body."""
    return orjson.dumps({"error": error.message})


def _build_embed(body: OllamaEmbedRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    # Ollama's vectors have length 1, whatever the files of the model say.
    return TextRequest(
        to_texts(body.input),
        normalize=True,
        truncate=body.truncate is not False,
        dimensions=check_dimensions(body.dimensions or None, spec.text),
    )


def _write_embed(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(
        {
            "model": context.model,
            "embeddings": array_to_json(answer.embeddings),
            "total_duration": int(context.latency_ms * 1e6),
            "load_duration": 0,
            "prompt_eval_count": answer.tokens,
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _build_one(body: OllamaEmbeddingsRequest, spec: ModelSpec) -> TextRequest:
    return TextRequest([body.prompt], normalize=True)


def _write_one(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"embedding": array_to_json(answer.embeddings[0])}, option=orjson.OPT_SERIALIZE_NUMPY)


def _rename_one(field: str) -> str:
    return "prompt" if field.startswith("text") else field


EMBED_CODEC = OllamaCodec(
    "/api/embed", ("embed",), OllamaEmbedRequest, _build_embed, _write_embed,
    rename=lambda field: rename_text(field, "input"), check=check_options_of_vectors, ignored=ignored_of_vectors,
)  # fmt: skip
EMBEDDINGS_CODEC = OllamaCodec(
    "/api/embeddings", ("embed",), OllamaEmbeddingsRequest, _build_one, _write_one, rename=_rename_one,
    check=check_options_of_vectors, ignored=ignored_of_vectors,
)  # fmt: skip
