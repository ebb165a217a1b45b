"""/v1/classify, as vLLM or Infinity has it: labels of texts or images. And vLLM's /pooling: what a model returns."""

from typing import Any

import numpy as np
import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.embeddings import conversation_of, row_writer
from app.protocols.openai.field_policy import CLASSIFY, POOLING
from app.protocols.openai.image_messages import read_images, rename_content
from app.protocols.openai.requests import ClassifyRequest, PoolingRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.images import check_vector_size, vectors_of_images
from app.protocols.shared.fields.texts import (
    check_dimensions,
    check_input_type,
    check_token_limit,
    is_multi,
    texts_or_ids,
    to_texts,
)
from app.protocols.shared.json.output import list_to_json
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.text.label_order import in_label_order
from frameworks.types import (
    Array,
    ClassifyAnswer,
    ConversationRequest,
    EmbedAnswer,
    ModelSpec,
    MultiVectorAnswer,
    SparseAnswer,
    TextRequest,
    TextSpec,
)

_Answer = EmbedAnswer | ClassifyAnswer | MultiVectorAnswer | SparseAnswer
_MAX_ZEROS = 8 * 1024**2
"""Numbers of one response with sparse vectors; most are zeros of four bytes of JSON."""


def _build_classify(body: ClassifyRequest, spec: ModelSpec) -> TextRequest | ImageRequest:
    raw = bool(body.raw_scores) or body.use_activation is False
    images = read_images(body.messages, body.input, spec)
    if images is not None:
        return ImageRequest(images, raw_scores=raw)
    assert body.input is not None
    check_token_limit(body.truncate_prompt_tokens, "truncate_prompt_tokens", spec)
    return TextRequest(to_texts(body.input), truncate=body.truncates, raw_scores=raw)


def _write_classify(decoded: OpenAiRequest, answer: ClassifyAnswer, context: AnswerContext) -> bytes:
    if decoded.body.raw_scores is None:
        probabilities = in_label_order(answer, decoded.spec.labels)
        rows = list(zip(answer.predictions, probabilities, strict=True))
        data = list_to_json(list(enumerate(rows)), lambda item: _classified(item[0], *item[1]))
        return _dumps("classify", "list", context, answer, data)
    data = list_to_json(answer.predictions, lambda row: [{"score": score, "label": label} for label, score in row])
    return _dumps("classify", "classify", context, answer, data)


def _classified(index: int, row: list[tuple[str, float]], probabilities: list[float]) -> dict[str, Any]:
    """Return vLLM's form of one text. `probabilities`: in the order of the labels."""
    return {"index": index, "label": row[0][0], "probs": probabilities, "num_classes": len(row)}


def _build_pooling(body: PoolingRequest, spec: ModelSpec) -> TextRequest | ImageRequest | ConversationRequest:
    has_multi = spec.text is not None and "multi" in spec.text.kinds
    tasks = (None, spec.task, "token_embed" if has_multi else None)
    if body.task not in tasks:
        raise InvalidInput("task", f'expected "{spec.task}", the task of the model, got "{body.task}"; omit the field')
    is_embed = spec.task == "embed"
    raw_scores = not is_embed and body.use_activation is False
    conversation = conversation_of(body, spec, body.use_activation)
    if conversation is not None:
        return conversation
    images = read_images(body.messages, body.input, spec)
    if images is not None:
        check_vector_size(body.dimensions if is_embed else None, spec)
        normalize = body.use_activation if is_embed else None
        return ImageRequest(images, normalize, raw_scores=raw_scores, vectors=vectors_of_images(spec))
    assert spec.text is not None
    assert body.input is not None
    check_token_limit(body.truncate_prompt_tokens, "truncate_prompt_tokens", spec)
    if body.input_type is not None:
        check_input_type(spec, body.input_type)
    texts, token_ids = texts_or_ids(body.input)
    _check_sparse_rows(len(texts if token_ids is None else token_ids), spec.text)
    return TextRequest(
        texts,
        normalize=body.use_activation if is_embed else None,
        truncate=body.truncates,
        dimensions=check_dimensions(body.dimensions or None, spec.text) if is_embed else None,
        token_ids=token_ids,
        raw_scores=raw_scores,
        are_queries=body.input_type == "query",
        vectors=(spec.text.vectors,),
        kinds=("multi",) if body.task == "token_embed" and not is_multi(spec) else (),
    )


def _check_sparse_rows(rows: int, text: TextSpec) -> None:
    """Raise InvalidInput where sparse vectors with their zeros are too long for a response."""
    if text.vectors == "sparse" and text.embedding_size is not None and rows * text.embedding_size > _MAX_ZEROS:
        raise InvalidInput(
            "input",
            f"expected at most {max(1, _MAX_ZEROS // text.embedding_size)} texts, whose vectors are returned with "
            f"their zeros, got {rows}; split the request, or post the texts to /embed_sparse or /infer",
        )


def _with_zeros(answer: SparseAnswer, size: int) -> list[Array]:
    """Return a float32 vector [size] for each text."""
    rows = []
    for indices, values in zip(answer.indices, answer.values, strict=True):
        row = np.zeros(size, np.float32)
        row[indices] = values
        rows.append(row)
    return rows


def _write_pooling(decoded: OpenAiRequest, answer: _Answer, context: AnswerContext) -> bytes:
    write = row_writer(decoded.body.encoding_format)
    rows: list[Array]
    if isinstance(answer, MultiVectorAnswer):
        data = list_to_json(
            list(enumerate(answer.vectors)),
            lambda item: {"index": item[0], "object": "pooling", "data": write(item[1])},
        )
        return _dumps("pool", "list", context, answer, data)
    if isinstance(answer, EmbedAnswer):
        rows = list(answer.embeddings)
    elif isinstance(answer, SparseAnswer):
        assert decoded.spec.embedding_size is not None
        rows = _with_zeros(answer, decoded.spec.embedding_size)
    else:
        rows = [np.array(row, np.float64) for row in in_label_order(answer, decoded.spec.labels)]
    data = [{"index": index, "object": "pooling", "data": write(row)} for index, row in enumerate(rows)]
    return _dumps("pool", "list", context, answer, data)


def _dumps(prefix: str, kind: str, context: AnswerContext, answer: _Answer, data: Any) -> bytes:
    return orjson.dumps(
        {
            "id": f"{prefix}-{context.request_id}",
            "object": kind,
            "created": context.created_s,
            "model": context.model,
            "data": data,
            "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
        }
    )


CLASSIFY_CODEC = OpenAiCodec(
    "/v1/classify",
    ("classify",),
    ClassifyRequest,
    _build_classify,
    _write_classify,
    CLASSIFY,
    rename=rename_content,
    reads_images=True,
)
POOLING_CODEC = OpenAiCodec(
    "/pooling",
    ("embed", "classify"),
    PoolingRequest,
    _build_pooling,
    _write_pooling,
    POOLING,
    rename=rename_content,
    reads_images=True,
)
