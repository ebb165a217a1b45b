"""/v1/embeddings: a vector for each text, of any embed model."""

import base64
from typing import Any

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.json_body import describe_value
from app.protocols.openai.codec import Asked, Fields, OpenAiCodec, Question
from app.protocols.openai.field_policy import EMBEDDINGS
from app.protocols.openai.texts import read_texts, read_truncate
from app.protocols.text_fields import read_dimensions
from frameworks.errors import InvalidInput
from frameworks.types import Array, EmbedAnswer, ModelSpec, TextRequest

_NO_TOKENS = (
    "token ids are not taken, as those of another tokenizer would be read as other words; send text "
    "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
)


def _read(fields: Fields, spec: ModelSpec) -> Asked:
    assert spec.text is not None
    encoding = fields.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise InvalidInput("encoding_format", f'is {describe_value(encoding)}; wants "float" or "base64"')
    texts = fields.get("input")
    if isinstance(texts, list) and texts and type(texts[0]) in (int, list):
        raise InvalidInput("input", _NO_TOKENS)
    request = TextRequest(
        read_texts(texts, "input"),
        truncate=read_truncate(fields),
        dimensions=read_dimensions(fields, spec.text),
    )
    return Asked(request, form=encoding)


def _write(question: Question, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    write_row = _in_base64 if question.form == "base64" else _in_numbers
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


def _in_base64(row: Array) -> str:
    """float32, little-endian."""
    return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii")


def _in_numbers(row: Array) -> Any:
    """EncodedResponse row by row: between two of them other threads have their turn."""
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY))


def _own_name(field: str) -> str:
    return field.replace("text[", "input[", 1) if field.startswith("text[") else field


EMBEDDINGS_FORMAT = OpenAiCodec("/v1/embeddings", ("embed",), EMBEDDINGS, _read, _write, own_name=_own_name)
