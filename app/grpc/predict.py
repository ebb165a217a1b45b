"""Predict: numbers in, numbers out, for the simplest of clients."""

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from app.grpc.call import Call
from app.grpc.handler import GrpcHandler, Question
from app.grpc.messages import PREDICT_SERVICE, Message, PredictRequest, PredictResponse, parse
from app.inference.pipeline import FindSpec
from app.observability.metrics import RequestRecord
from app.protocols.codec import LONG_BYTES
from app.protocols.json_tensors import narrow
from app.protocols.model_inputs import explain_expected_input
from app.protocols.shapes import check_shape, read_sizes, reshape_flat
from frameworks.errors import InvalidInput
from frameworks.types import DEFAULT_PRIORITY, Answer, Array, ModelSpec, TensorBatch, TensorType

_PREDICT = f"/{PREDICT_SERVICE}/Predict"


@dataclass(frozen=True, slots=True)
class Prediction:
    """As DecodedRequest of app/inference/pipeline.py."""

    request: TensorBatch
    spec: ModelSpec
    timeout_ms: float | None
    priority: int = DEFAULT_PRIORITY
    stream: bool = False


class PredictCalls:
    """Owned by the event loop."""

    def __init__(self, asking: GrpcHandler, default_model: str | None) -> None:
        """`default_model`: for who names none; None: the only one that there is."""
        self._asking = asking
        self._default_model = default_model

    async def predict(self, request: bytes, call: Call) -> bytes:
        message = parse(PredictRequest, request)
        decode = partial(self._decode, message, call)
        is_long = len(request) >= LONG_BYTES
        question = Question(_PREDICT, message.model_name, "", decode, _write, is_long, is_answer_long=True)
        response: bytes = await self._asking.ask(question, call)
        return response

    def _decode(self, message: Message, call: Call, find_spec: FindSpec) -> Prediction:
        """Raises InvalidInput, and what `find_spec` raises."""
        timeout_ms = None if call.left_s is None else max(call.left_s * 1e3, 0.001)
        spec = find_spec(message.model_name or self._only_model(), None, lambda: timeout_ms)
        sole = spec.sole_input
        if spec.text is not None or spec.generation is not None:
            raise InvalidInput("model_name", f"Predict is for numbers; {explain_expected_input(spec)}, by ModelInfer")
        if sole is None or not isinstance(sole.type, TensorType):
            raise InvalidInput("model_name", "Predict fits a model with exactly one required tensor; use ModelInfer")
        numbers = _as_wanted(np.array(message.data, np.float32), sole.type.dtype)
        if message.shape or sole.type.shape is None:
            shape = read_sizes(list(message.shape) or [len(numbers)], "shape")
            if prod(shape) != numbers.size:
                raise InvalidInput("shape", f"{list(shape)} holds {prod(shape)} numbers, and data has {numbers.size}")
            numbers = numbers.reshape(shape)
        else:
            numbers = reshape_flat(numbers, sole.type.shape, None, "data")
        check_shape(numbers.shape, sole.type.shape, "shape")
        return Prediction(TensorBatch({sole.name: numbers}, spec.first_output), spec, timeout_ms)

    def _only_model(self) -> str:
        if self._default_model:
            return self._default_model
        names = [slot.name for slot in self._asking.pipeline.manager.slots]
        if len(names) == 1:
            return names[0]
        there = f"there are {', '.join(names[:10])}" if names else "there are none"
        raise InvalidInput(
            "model_name", f"is missing, and of the models {there}; name one, or set models.default_model"
        )


def _as_wanted(numbers: Array, dtype: str) -> Array:
    """Raises InvalidInput where the model wants no such numbers."""
    if dtype in ("string", "bool"):
        raise InvalidInput("data", f"holds numbers, and the model wants {dtype}; use ModelInfer")
    if "int" not in dtype:
        return numbers if dtype == "float32" else narrow(numbers.astype(np.float64), dtype, "data")
    if not (np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all() and (np.abs(numbers) < 2.0**63).all()):
        raise InvalidInput("data", f"holds numbers that are not whole, and the model wants {dtype}")
    return narrow(numbers.astype(np.int64), dtype, "data")


def _write(_: RequestRecord, decoded: Prediction, answer: Answer) -> bytes:
    assert isinstance(answer, dict)
    name = decoded.spec.first_output[0]
    value = answer[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        raise InvalidInput(
            "model_name", f"its first output, {name}, is {decoded.spec.outputs_by_name[name].type}; use ModelInfer"
        )
    numbers = value.astype(np.float32).reshape(-1).tolist()
    serialized: bytes = PredictResponse(predictions=numbers, shape=value.shape).SerializeToString()
    return serialized
