"""Encode the response of /infer: JSON in the form of the request. NaN and infinities become null."""

from typing import Any

import numpy as np
import orjson

from app.protocols.codec import AnswerContext
from app.protocols.json_output import DIRECT_ELEMENTS, array_to_json, to_json_value
from app.protocols.native.decode import NativeRequest
from app.protocols.native.stream import describe_generated
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, TensorBatch, Value


def encode(native: NativeRequest, answer: Answer | GenerateAnswer, context: AnswerContext) -> bytes:
    """Return the body of a 200."""
    content: dict[str, Any] = {"model_name": context.model, "version": context.version}
    if native.question == "input_data" and isinstance(answer, dict):
        assert isinstance(native.request, TensorBatch)
        assert native.request.output_names is not None
        value = answer[native.request.output_names[0]]
        if isinstance(value, np.ndarray):
            content["output_data"] = value.reshape(-1) if native.flat else value
            content["output_shape"] = value.shape
            if value.size > DIRECT_ELEMENTS or value.dtype.kind not in "fiub" or not value.flags.c_contiguous:
                content["output_data"] = to_json_value(content["output_data"])
        else:
            content["output_data"], content["output_shape"] = to_json_value(value), _shape(value)
    else:
        content |= _describe(native, answer)
    content["latency_ms"] = round(context.latency_ms, 3)
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _describe(native: NativeRequest, answer: Answer | GenerateAnswer) -> dict[str, Any]:
    """Return the fields of every response but that to `input_data`."""
    match answer:
        case EmbedAnswer():
            return {"embeddings": array_to_json(answer.embeddings), "tokens": answer.tokens}
        case ClassifyAnswer():
            predictions = [
                [{"label": label, "score": score} for label, score in labels] for labels in answer.predictions
            ]
            return {"predictions": predictions}
        case GenerateAnswer():
            assert isinstance(native.request, GenerateRequest)
            return describe_generated(native.request, answer)
        case dict():
            outputs = {
                name: {
                    "dtype": str(native.spec.outputs_by_name[name].type),
                    "shape": _shape(value),
                    "data": to_json_value(value),
                }
                for name, value in answer.items()
            }
            return {"outputs": outputs}
    raise AssertionError(f"/infer has no form for {type(answer).__name__}")


def _shape(value: Value) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return list(value.shape)
    return [len(value)] if isinstance(value, list) else None
