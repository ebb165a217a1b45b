"""/v1/embeddings: one vector for each text or image, or for a conversation, for any embed model."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import EMBEDDINGS
from app.protocols.openai.image_messages import (
    check_no_ending,
    ending_of,
    read_conversation,
    read_images,
    read_input,
    rename_content,
)
from app.protocols.openai.requests import EmbeddingsRequest, PoolingRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.images import check_vector_size
from app.protocols.shared.fields.texts import check_dimensions, check_input_type, check_token_limit, texts_or_ids
from frameworks.images.spec import ImageRequest
from frameworks.types import Array, ConversationRequest, EmbedAnswer, ModelSpec, TextRequest


def _build(body: EmbeddingsRequest, spec: ModelSpec) -> TextRequest | ImageRequest | ConversationRequest:
    conversation = conversation_of(body, spec, body.normalizes)
    if conversation is not None:
        return conversation
    if body.input_type is not None:
        check_input_type(spec, body.input_type)
    reads_input = body.modality == "image" and body.messages is None
    images = read_input(body.input, spec) if reads_input else read_images(body.messages, body.input, spec)
    if images is not None:
        check_vector_size(body.dimensions or None, spec)
        return ImageRequest(images, normalize=body.normalizes)
    assert spec.text is not None
    assert body.input is not None
    check_token_limit(body.truncate_prompt_tokens, "truncate_prompt_tokens", spec)
    texts, token_ids = texts_or_ids(body.input)
    return TextRequest(
        texts,
        normalize=body.normalizes,
        truncate=body.truncates,
        dimensions=check_dimensions(body.dimensions or None, spec.text),
        token_ids=token_ids,
        are_queries=body.input_type == "query",
    )


def conversation_of(
    body: EmbeddingsRequest | PoolingRequest, spec: ModelSpec, normalize: bool | None
) -> ConversationRequest | None:
    """Return the request for a conversation; None for texts and images that are embedded each. Raises InvalidInput."""
    if body.messages is None or spec.messages is None or body.input is not None:
        check_no_ending(body.add_generation_prompt, body.continue_final_message)
        return None
    assert spec.text is not None
    check_token_limit(body.truncate_prompt_tokens, "truncate_prompt_tokens", spec)
    return ConversationRequest(
        read_conversation(body.messages),
        ending_of(body.add_generation_prompt, body.continue_final_message, body.messages),
        normalize,
        check_dimensions(body.dimensions or None, spec.text),
    )


def _write(decoded: OpenAiRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    write_row = row_writer(decoded.body.encoding_format)
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


def row_writer(encoding_format: str | None) -> Callable[[Array], Any]:
    """Return the function that writes one vector."""
    return _to_base64 if encoding_format == "base64" else _to_numbers


def _to_base64(row: Array) -> str:
    """Encode as float32, little-endian."""
    return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii")


def _to_numbers(row: Array) -> Any:
    """Encode one row: the interpreter's lock is free for other threads between two rows."""
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY))


EMBEDDINGS_CODEC = OpenAiCodec(
    "/v1/embeddings",
    ("embed",),
    EmbeddingsRequest,
    _build,
    _write,
    EMBEDDINGS,
    rename=rename_content,
    reads_images=True,
)
