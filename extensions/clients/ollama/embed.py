"""/api/embed and the older /api/embeddings: one vector for each text."""

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.texts import check_dimensions, rename_text, to_texts
from app.protocols.shared.json.output import array_to_json
from extensions.clients.ollama.codec import OllamaCodec
from extensions.clients.ollama.requests import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    check_options_of_vectors,
    ignored_of_vectors,
)
from frameworks.types import EmbedAnswer, ModelSpec, TextRequest


def _build(body: OllamaEmbedRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    # Ollama's vectors have length 1, whatever the files of the model say.
    return TextRequest(
        to_texts(body.input),
        normalize=True,
        truncate=body.truncate is not False,
        dimensions=check_dimensions(body.dimensions or None, spec.text),
    )


def _write(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
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
    "/api/embed", ("embed",), OllamaEmbedRequest, _build, _write,
    rename=lambda field: rename_text(field, "input"), check=check_options_of_vectors, ignored=ignored_of_vectors,
)  # fmt: skip
EMBEDDINGS_CODEC = OllamaCodec(
    "/api/embeddings", ("embed",), OllamaEmbeddingsRequest, _build_one, _write_one, rename=_rename_one,
    check=check_options_of_vectors, ignored=ignored_of_vectors,
)  # fmt: skip
