"""Estimate the memory of a decoded request and of its answer, without a look at each of its values."""

from typing import Any

import numpy as np

from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskAnswer, TaskRequest
from frameworks.types import (
    CombinedAnswer,
    ConversationRequest,
    EmbedAnswer,
    ImagePairRequest,
    MultiVectorAnswer,
    PairRequest,
    SparseAnswer,
    TensorBatch,
    TextRequest,
    Value,
)

_OBJECT_BYTES = 64
"""Of a Python string, beside its characters."""
_ARRAY_BYTES = 128
"""Of a numpy array, beside its data."""
# A number of two characters ("0,") takes up to eight bytes.
_MAX_GROWTH = 4


def decoded_bytes(request: Any, received_bytes: int) -> int:
    """Return the bytes of a decoded request. `received_bytes`: those that it was decoded from.

    Exact for tensors of numbers and for files of images. Texts have no more characters than were received.
    """
    if isinstance(request, TensorBatch):
        total = 0
        for value in request.inputs.values():
            if isinstance(value, np.ndarray) and value.dtype.kind != "O":
                total += value.nbytes
            else:
                total += _other_bytes(value, received_bytes // len(request.inputs))
        return total
    if isinstance(request, TextRequest):
        return received_bytes + _OBJECT_BYTES * len(request.texts)
    if isinstance(request, ConversationRequest):
        files = sum(len(image.data) for image in request.conversation.images)
        texts = sum(len(message.content) for message in request.conversation.messages)
        return files + texts + _OBJECT_BYTES * len(request.conversation.messages)
    if isinstance(request, ImageRequest | ImagePairRequest):
        return sum(map(len, request.images)) + _OBJECT_BYTES * len(request.images)
    if isinstance(request, TaskRequest):
        return received_bytes + sum(_OBJECT_BYTES * len(each) for each in request.inputs)
    if isinstance(request, PairRequest):
        return received_bytes + 3 * _OBJECT_BYTES * len(request.pairs)
    return received_bytes


def answer_bytes(answer: Any) -> int:
    """Return the bytes of the tensors and sounds in an answer; 0 for others, which are small beside their run."""
    if isinstance(answer, EmbedAnswer):
        return answer.embeddings.nbytes
    if isinstance(answer, MultiVectorAnswer):
        return sum(_ARRAY_BYTES + vectors.nbytes for vectors in answer.vectors)
    if isinstance(answer, SparseAnswer):
        return sum(2 * _ARRAY_BYTES + 2 * values.nbytes for values in answer.values)
    if isinstance(answer, CombinedAnswer):
        return sum(map(answer_bytes, answer.answers))
    if isinstance(answer, TaskAnswer):
        # Sounds are long texts of base64.
        values = (each.values() for each in answer.predictions if isinstance(each, dict))
        return sum(len(value) for each in values for value in each if isinstance(value, str))
    return decoded_bytes(TensorBatch(answer), 0) if isinstance(answer, dict) else 0


def _other_bytes(value: Value, characters: int) -> int:
    """`value`: no tensor of numbers. `characters`: of the strings in it, about."""
    if isinstance(value, np.ndarray):
        return characters + (_OBJECT_BYTES + value.itemsize) * value.size
    if value is None:
        return 0
    # The values of a sequence or a map are not counted one by one: there may be a million.
    return _MAX_GROWTH * characters + _ARRAY_BYTES * len(value)
