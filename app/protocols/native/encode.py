"""Step 5, ENCODE: an answer → the JSON that mirrors the question."""

from typing import Any

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.json_output import array_to_json, to_json_value
from app.protocols.native.decode import NativeRequest
from app.protocols.native.stream import describe_generated
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, TensorBatch, Value


def encode(native: NativeRequest, answer: Answer | GenerateAnswer, context: AnswerContext) -> bytes:
    """The body of a 200. NaN and infinities become null."""
    head: dict[str, Any] = {"model_name": context.model, "version": context.version}
    if native.question == "input_data" and isinstance(answer, dict):
        head["output_data"], head["output_shape"] = _one_output(native, answer)
        head["latency_ms"] = round(context.latency_ms, 3)
        return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    match answer:
        case EmbedAnswer():
            head |= {"embeddings": array_to_json(answer.embeddings), "tokens": answer.tokens}
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
                    "data": to_json_value(value),
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
    return to_json_value(flattened), _shape(value)


def _shape(value: Value) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return list(value.shape)
    return [len(value)] if isinstance(value, list) else None
