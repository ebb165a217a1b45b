"""/v1/embeddings: one vector for each text, for any embed model."""

import base64
from typing import Any, cast

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.requests import EmbeddingsRequest
from app.protocols.text_fields import check_dimensions, to_texts
from frameworks.types import Array, EmbedAnswer, ModelSpec, TextRequest


def _build(body: EmbeddingsRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    texts, token_ids = _texts_or_ids(body.input)
    return TextRequest(
        texts,
        truncate=body.truncate is not False,
        dimensions=check_dimensions(body.dimensions, spec.text),
        token_ids=token_ids,
    )


def _texts_or_ids(given: str | list[str] | list[int] | list[list[int]]) -> tuple[list[str], list[list[int]] | None]:
    """Return texts, or the token ids of texts. The body's class accepts no empty list."""
    if isinstance(given, list) and not isinstance(given[0], str):
        is_one_text = isinstance(given[0], int)
        return [], cast("list[list[int]]", [given] if is_one_text else given)
    return to_texts(given), None


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
    return "input" + field[len("text") :] if field == "text" or field.startswith("text[") else field


EMBEDDINGS_CODEC = OpenAiCodec("/v1/embeddings", ("embed",), EmbeddingsRequest, _build, _write, rename=_rename)
