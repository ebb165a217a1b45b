"""Step 5, ENCODE: an answer → the JSON that mirrors the question."""

from typing import Any

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.native.decode import NativeRequest
from app.protocols.native.stream import describe_generated
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.types import Answer, Array, ClassifyAnswer, EmbedAnswer, TensorBatch, Value

# EncodedResponse at one go, in well under a millisecond.
_BLOCK_ELEMENTS = 16 * 1024


def encode(native: NativeRequest, answer: Answer | GenerateAnswer, context: AnswerContext) -> bytes:
    """The body of a 200. NaN and infinities become null."""
    head: dict[str, Any] = {"model_name": context.model, "version": context.version}
    if native.question == "input_data" and isinstance(answer, dict):
        head["output_data"], head["output_shape"] = _one_output(native, answer)
        head["latency_ms"] = round(context.latency_ms, 3)
        return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    match answer:
        case EmbedAnswer():
            head |= {"embeddings": _written(answer.embeddings), "tokens": answer.tokens}
        case ClassifyAnswer():
            head["predictions"] = [
                [{"label": label, "score": score} for label, score in labels] for labels in answer.predictions
            ]
        case GenerateAnswer():
            assert isinstance(native.request, GenerateRequest)
            head |= describe_generated(native.request, answer)
        case dict():
            head["outputs"] = {
                name: {
                    "dtype": str(native.spec.outputs_by_name[name].type),
                    "shape": _shape(value),
                    "data": plain(value),
                }
                for name, value in answer.items()
            }
    head["latency_ms"] = round(context.latency_ms, 3)
    return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)


def _one_output(native: NativeRequest, answer: dict[str, Value]) -> tuple[Any, list[int] | None]:
    """Data and shape."""
    assert isinstance(native.request, TensorBatch)
    assert native.request.output_names is not None
    value = answer[native.request.output_names[0]]
    flattened = value.reshape(-1) if native.flat and isinstance(value, np.ndarray) else value
    return plain(flattened), _shape(value)


def plain(value: Value) -> Any:
    """A value in what orjson writes: arrays that it takes as they are, lists, objects with string keys, scalars."""
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def _plain_array(array: Array) -> Any:
    if array.ndim == 0:
        scalar = array.item()
        return None if isinstance(scalar, float) and not np.isfinite(scalar) else scalar
    if array.dtype.kind in "OUS":
        return array.tolist()
    return _written(np.ascontiguousarray(array))


def _written(array: Array) -> Any:
    """A long array in the JSON of its blocks: between two of them other threads have their turn."""
    if array.size <= _BLOCK_ELEMENTS or array.ndim == 0 or len(array) < 2:
        return array
    rows = max(1, _BLOCK_ELEMENTS * len(array) // array.size)
    blocks = (
        orjson.dumps(array[start : start + rows], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for start in range(0, len(array), rows)
    )
    return orjson.Fragment(b"[" + b",".join(blocks) + b"]")


def _shape(value: Value) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return list(value.shape)
    return [len(value)] if isinstance(value, list) else None
