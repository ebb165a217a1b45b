"""/v1/embeddings: one vector for each text, for any embed model."""

import base64
from typing import Any

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.requests import EmbeddingsRequest
from app.protocols.text_fields import check_dimensions, to_texts
from frameworks.types import Array, EmbedAnswer, ModelSpec, TextRequest


def _build(body: EmbeddingsRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    return TextRequest(
        to_texts(body.input),
        truncate=body.truncate is not False,
        dimensions=check_dimensions(body.dimensions, spec.text),
    )


def _write(decoded: OpenAiRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    write_row = _to_base64 if decoded.body.encoding_format == "base64" else _to_numbers
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": write_row(row)}
            for index, row in enumerate(answer.embeddings)
        ],
        "model": context.model,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return orjson.dumps(body)


def _to_base64(row: Array) -> str:
    """Encode as float32, little-endian."""
    return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii")


def _to_numbers(row: Array) -> Any:
    """Encode one row: the interpreter's lock is free for other threads between two rows."""
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY))


def _rename(field: str) -> str:
    return field.replace("text[", "input[", 1) if field.startswith("text[") else field


EMBEDDINGS_CODEC = OpenAiCodec("/v1/embeddings", ("embed",), EmbeddingsRequest, _build, _write, rename=_rename)
