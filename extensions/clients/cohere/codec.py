"""The codecs of Cohere's API: /v2/embed for texts and images, and /v2/rerank."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.images import (
    check_num_images,
    check_reads_images,
    check_reads_texts,
    check_vector_size,
    decode_image,
    decode_images,
)
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from app.protocols.shared.fields.texts import check_dimensions, check_token_limit, rename_text
from app.protocols.shared.json.output import array_to_json, list_to_json
from app.protocols.shared.ranking import best_first, check_scores_pairs, rename_pair
from extensions.clients.cohere.requests import CohereEmbedRequest, CohereRerankRequest, EmbedImagePart, EmbedPart
from frameworks.core.errors import InvalidInput
from frameworks.images.headers import read_header
from frameworks.images.spec import ImageRequest
from frameworks.types import Array, EmbedAnswer, ModelSpec, PairRequest, ScoreAnswer, TextRequest, TextSpec, Truncation


@dataclass(frozen=True, slots=True)
class CohereCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def is_long_to_write(self, decoded: BodyRequest, answer: Any) -> bool:
        # The answer describes the images: a header may have thousands of parts, which are read in Python.
        return isinstance(decoded.request, ImageRequest) or BodyCodec.is_long_to_write(self, decoded, answer)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"id": request_id, "message": self.renamed(error).message})


def meta(**billed_units: int) -> dict[str, Any]:
    """Return `meta` of a response. `billed_units`: the counts of the request."""
    return {"api_version": {"version": "2"}, "billed_units": billed_units}


_TRUNCATIONS: dict[str | None, Truncation] = {None: True, "NONE": False, "START": "left", "END": "right"}
# Names that models have for the prompts of Cohere's types.
_PROMPTS = {"search_query": ("query",), "search_document": ("document", "passage")}


def _build_embed(body: CohereEmbedRequest, spec: ModelSpec) -> TextRequest | ImageRequest:
    _check_one_field(body)
    images = _images_of(body)
    if images is not None:
        check_reads_images(spec, "images" if body.images is not None else "inputs")
        check_vector_size(body.output_dimension, spec)
        _check_bits(body, spec.embedding_size)
        return ImageRequest(images)
    check_reads_texts(spec, "texts" if body.texts is not None else "inputs")
    assert spec.text is not None
    if body.input_type == "image":
        raise InvalidInput("input_type", "expected a type of texts, got image; send images, or another type")
    check_token_limit(body.max_tokens, "max_tokens", spec)
    dimensions = check_dimensions(body.output_dimension, spec.text)
    _check_bits(body, dimensions or spec.text.embedding_size)
    prompt = _prompt_of(body.input_type, spec.text)
    return TextRequest(
        _texts_of(body),
        truncate=_TRUNCATIONS[body.truncate],
        dimensions=dimensions,
        prompt=prompt,
        are_queries=spec.text.has_sides and body.input_type == "search_query",
    )


def _check_one_field(body: CohereEmbedRequest) -> None:
    """Raise InvalidInput unless the body has one of its three fields of inputs."""
    given = [name for name in ("texts", "images", "inputs") if getattr(body, name) is not None]
    if len(given) > 1:
        raise InvalidInput(given[-1], f"expected one of texts, images and inputs, got {' and '.join(given)}; send one")
    if not given:
        raise InvalidInput("texts", "expected a list of strings, got nothing; send texts, images or inputs")


def _check_bits(body: CohereEmbedRequest, size: int | None) -> None:
    if size is not None and size % 8 and {"binary", "ubinary"} & set(body.embedding_types or ()):
        raise InvalidInput("embedding_types", f"expected vectors of a multiple of 8 numbers for bits, got {size}")


def _images_of(body: CohereEmbedRequest) -> list[bytes] | None:
    """Return the files of a request for images, None for one of texts. Raises InvalidInput."""
    if body.images is not None:
        return decode_images(body.images, "images")
    inputs = body.inputs or []
    are_images = [any(isinstance(part, EmbedImagePart) for part in each.content) for each in inputs]
    if not any(are_images):
        return None
    check_num_images(len(inputs), "inputs")
    files = []
    for number, each in enumerate(inputs):
        [part, *more] = each.content
        if more or not isinstance(part, EmbedImagePart):
            raise InvalidInput(
                f"inputs[{number}].content",
                "expected one image in each input, got others; send texts in another request",
            )
        files.append(decode_image(part.image_url.url, f"inputs[{number}].content[0].image_url.url"))
    return files


def _prompt_of(input_type: str | None, text: TextSpec) -> str | None:
    """Return the prompt that the model's files have for a type of texts; None: that of the files for all texts."""
    names = () if input_type is None else (input_type, *_PROMPTS.get(input_type, ()))
    return next((text.prompts[name] for name in names if name in text.prompts), None)


def _texts_of(body: CohereEmbedRequest) -> list[str]:
    if body.texts is not None:
        return body.texts
    inputs = body.inputs or []
    return ["\n".join(part.text for part in each.content if isinstance(part, EmbedPart)) for each in inputs]


def _write_embed(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    rows = np.ascontiguousarray(answer.embeddings)
    forms = dict.fromkeys(decoded.body.embedding_types or ("float",))
    return orjson.dumps(
        {
            "response_type": "embeddings_by_type",
            "id": context.request_id,
            "embeddings": {form: _FORMS[form](rows) for form in forms},
            **_counted(decoded.request, answer),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _counted(request: TextRequest | ImageRequest, answer: EmbedAnswer) -> dict[str, Any]:
    """Return the texts or images of the request, and its counts."""
    if isinstance(request, ImageRequest):
        images = [_described(file) for file in request.images]
        return {"texts": [], "images": images, "meta": meta(images=len(images))}
    return {"texts": request.texts, "images": [], "meta": meta(input_tokens=answer.tokens)}


def _described(file: bytes) -> dict[str, Any]:
    """Return what Cohere says of an image. `bit_depth`: bits of a pixel in the file."""
    header = read_header(file)
    assert header is not None, "the model read an image of another format"
    return {
        "width": header.width,
        "height": header.height,
        "format": header.format.lower(),
        "bit_depth": header.bits_per_pixel,
    }


def _to_base64(rows: Array) -> list[str]:
    """Encode each vector as float32, little-endian."""
    return [base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii") for row in rows]


def _to_bits(rows: Array) -> Array:
    """Return a bit for each value, 1 for 0 and more, the first value in the highest bit: uint8 [texts, size / 8]."""
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


def _rename_in_embed(field: str) -> str:
    if field == "image" or field.startswith("image["):
        return f"images{field[len('image') :]}"
    return rename_text(field, "texts")


EMBED_CODEC = CohereCodec(
    "/v2/embed", ("embed",), CohereEmbedRequest, _build_embed, _write_embed, rename=_rename_in_embed, reads_images=True
)


_RERANK = FieldPolicy(
    {
        "relevant_spans": Refusal("scores are of whole documents: omit the field"),
        "rank_fields": Refusal("a document is one text: put the fields into it"),
        "max_chunks_per_doc": Refusal(
            "a document is scored whole, truncated at the model's limit: send its parts as documents"
        ),
    }
)


def _build_ranking(body: CohereRerankRequest, spec: ModelSpec) -> PairRequest:
    check_scores_pairs(spec)
    check_token_limit(body.max_tokens_per_doc, "max_tokens_per_doc", spec)
    return PairRequest([(body.query, document) for document in body.documents])


def _write_ranking(decoded: BodyRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    pairs, scores = decoded.request.pairs, answer.scores
    with_documents = bool(decoded.body.return_documents)

    def result(index: int) -> dict[str, Any]:
        document = {"document": {"text": pairs[index][1]}} if with_documents else {}
        return {"index": index, "relevance_score": scores[index], **document}

    return orjson.dumps(
        {
            "id": context.request_id,
            "results": list_to_json(best_first(scores, decoded.body.top_n), result),
            "meta": meta(search_units=1),
            "model": context.model,
            "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
        }
    )


RERANK_CODEC = CohereCodec(
    "/v2/rerank", ("embed", "classify"), CohereRerankRequest, _build_ranking, _write_ranking, _RERANK,
    rename=lambda field: rename_pair(field, "query", "documents"), kinds=("rerank", "embed"),
)  # fmt: skip
