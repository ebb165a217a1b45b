"""/v2/embed: the vectors of texts in the forms that Cohere has."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from app.protocols.body_codec import BodyRequest
from app.protocols.codec import AnswerContext
from app.protocols.cohere.codec import CohereCodec, meta
from app.protocols.cohere.requests import CohereEmbedRequest
from app.protocols.field_policy import FieldPolicy, Refusal
from app.protocols.json_output import array_to_json
from app.protocols.text_fields import check_dimensions, check_token_limit, rename_text
from frameworks.errors import InvalidInput
from frameworks.types import Array, EmbedAnswer, ModelSpec, TextRequest, TextSpec

# Names that models have for the prompts of Cohere's types.
_PROMPTS = {"search_query": ("query",), "search_document": ("document", "passage")}
_POLICY = FieldPolicy({"images": Refusal("the server reads only text: send texts", ([],))})


def _build(body: CohereEmbedRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    check_token_limit(body.max_tokens, "max_tokens", spec)
    dimensions = check_dimensions(body.output_dimension, spec.text)
    size = dimensions or spec.text.embedding_size
    if size is not None and size % 8 and {"binary", "ubinary"} & set(body.embedding_types or ()):
        raise InvalidInput("embedding_types", f"expected vectors of a multiple of 8 numbers for bits, got {size}")
    prompt = _prompt_of(body.input_type, spec.text)
    return TextRequest(_texts_of(body), truncate=body.truncate != "NONE", dimensions=dimensions, prompt=prompt)


def _prompt_of(input_type: str | None, text: TextSpec) -> str | None:
    """Return the prompt that the model's files have for a type of texts; None: that of the files for all texts."""
    names = () if input_type is None else (input_type, *_PROMPTS.get(input_type, ()))
    return next((text.prompts[name] for name in names if name in text.prompts), None)


def _texts_of(body: CohereEmbedRequest) -> list[str]:
    if body.inputs is not None:
        if body.texts is not None:
            raise InvalidInput("inputs", "expected either texts or inputs, got both; send one of them")
        return ["\n".join(part.text for part in each.content) for each in body.inputs]
    if body.texts is None:
        raise InvalidInput("texts", "expected a list of strings, got nothing; send texts or inputs")
    return body.texts


def _write(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    rows = np.ascontiguousarray(answer.embeddings)
    forms = dict.fromkeys(decoded.body.embedding_types or ("float",))
    return orjson.dumps(
        {
            "response_type": "embeddings_by_type",
            "id": context.request_id,
            "embeddings": {form: _FORMS[form](rows) for form in forms},
            "texts": decoded.request.texts,
            "meta": meta(input_tokens=answer.tokens),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _to_base64(rows: Array) -> list[str]:
    """Encode each vector as float32, little-endian."""
    return [base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii") for row in rows]


def _to_bits(rows: Array) -> Array:
    """Return a bit for each number, 1 for 0 and more, the first number in the highest bit: uint8 [texts, size / 8]."""
    return np.packbits(rows >= 0, axis=-1)


def _to_signed_bits(rows: Array) -> Array:
    """Return the bytes of `_to_bits` less 128, as int8."""
    return (_to_bits(rows).astype(np.int16) - 128).astype(np.int8)


_FORMS: dict[str, Callable[[Array], Any]] = {
    "float": array_to_json,
    "base64": _to_base64,
    "binary": _to_signed_bits,
    "ubinary": _to_bits,
}


def _rename(field: str) -> str:
    return rename_text(field, "texts")


EMBED_CODEC = CohereCodec("/v2/embed", ("embed",), CohereEmbedRequest, _build, _write, _POLICY, rename=_rename)
