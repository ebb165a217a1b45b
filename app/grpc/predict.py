"""Answer the calls of Predict: one tensor of floats in, one out, for clients that need nothing else."""

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from app.auth.principal import Principal
from app.grpc.call import Call
from app.grpc.handler import GrpcHandler, InferenceCall
from app.grpc.messages import PREDICT_SERVICE, PredictResponse
from app.grpc.received import ReceivedPredict, read_predict
from app.inference.contract import NamedRequest
from app.observability.metrics import RequestRecord
from app.protocols.open_inference.datatypes import encode_tensor
from app.protocols.shared.codec import LONG_BYTES, LONG_ELEMENTS
from app.protocols.shared.json.shapes import MAX_RANK, check_shape, read_sizes, reshape_flat
from app.protocols.shared.json.tensors import narrow
from frameworks.core.errors import InvalidInput
from frameworks.core.protobuf_wire import write_head
from frameworks.types import DEFAULT_PRIORITY, Answer, Array, ModelSpec, TensorBatch, TensorType

_PREDICT = f"/{PREDICT_SERVICE}/Predict"
_PREDICTIONS = PredictResponse.DESCRIPTOR.fields_by_name["predictions"].number


@dataclass(frozen=True, slots=True)
class DecodedPredict:
    """Implement DecodedRequest of app/inference/contract.py."""

    request: TensorBatch
    spec: ModelSpec
    timeout_ms: float | None
    priority: int = DEFAULT_PRIORITY
    stream: bool = False


class PredictCalls:
    """Owned by the event loop."""

    def __init__(self, handler: GrpcHandler, default_model: str | None) -> None:
        """`default_model`: for a request without `model_name`; None: the only model that the sender may use."""
        self._handler = handler
        self._default_model = default_model

    async def predict(self, request: bytes, call: Call) -> bytes:
        received = read_predict(request)
        message = received.message
        read = partial(self._read, received, call)
        is_long = len(request) >= LONG_BYTES
        inference = InferenceCall(_PREDICT, message.model_name, "", read, _write, is_long, True, len(request))
        response: bytes = await self._handler.run(inference, call)
        return response

    def _read(self, received: ReceivedPredict, call: Call) -> NamedRequest:
        """Raises InvalidInput."""
        timeout_ms = None if call.left_s is None else max(call.left_s * 1e3, 0.001)
        name = received.message.model_name or self._default_name(call.principal)
        return NamedRequest(name, None, partial(_decode, received, timeout_ms), lambda: timeout_ms)

    def _default_name(self, principal: Principal) -> str:
        """Return the default model, or the only one if the sender may not use the default model."""
        models = self._handler.pipeline.models_of(principal)
        if self._default_model and models.may_use(self._default_model):
            return self._default_model
        names = [slot.name for slot in models.slots]
        if len(names) == 1:
            return names[0]
        known = ", ".join(names[:10]) or "none is registered"
        raise InvalidInput("model_name", f"expected a model's name ({known}), got none; or set models.default_model")


def _decode(received: ReceivedPredict, timeout_ms: float | None, spec: ModelSpec) -> DecodedPredict:
    """Decode a PredictRequest. Raises InvalidInput."""
    message, sole = received.message, spec.sole_input
    if spec.text is not None or spec.generation is not None:
        raise InvalidInput("model_name", f"expected a tensor model, got task {spec.task}; use ModelInfer")
    if sole is None or not isinstance(sole.type, TensorType):
        inputs = ", ".join(f"{each.name}: {each.type}" for each in spec.inputs)
        raise InvalidInput("model_name", f"expected a model with one required tensor, got {inputs}; use ModelInfer")
    values = _cast(_values(received), sole.type.dtype)
    if message.shape or sole.type.shape is None:
        shape = read_sizes(message.shape[: MAX_RANK + 1] or [len(values)], "shape")
        if prod(shape) != values.size:
            raise InvalidInput("shape", f"expected the shape of {values.size} numbers, got {list(shape)}")
        values = values.reshape(shape)
    else:
        values = reshape_flat(values, sole.type.shape, None, "data")
    check_shape(values.shape, sole.type.shape, "shape")
    return DecodedPredict(TensorBatch({sole.name: values}, spec.first_output), spec, timeout_ms)


def _values(received: ReceivedPredict) -> Array:
    if received.data is None:
        return np.array(received.message.data, np.float32)
    return np.frombuffer(b"".join(received.data), "<f4")


def _cast(values: Array, dtype: str) -> Array:
    """Convert float32 values to the model's dtype. Raises InvalidInput for a value that it does not hold."""
    if dtype in ("string", "bool"):
        raise InvalidInput("data", f"expected {dtype}, got numbers; use ModelInfer")
    if "int" not in dtype:
        return values if dtype == "float32" else narrow(values.astype(np.float64), dtype, "data")
    if not (np.isfinite(values).all() and (values == np.rint(values)).all() and (np.abs(values) < 2.0**63).all()):
        raise InvalidInput("data", f"expected whole numbers for {dtype}, got fractions or infinities")
    return narrow(values.astype(np.int64), dtype, "data")


def _write(_: RequestRecord, decoded: DecodedPredict, answer: Answer) -> bytes:
    assert isinstance(answer, dict)
    name = decoded.spec.first_output[0]
    value = answer[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        kind = decoded.spec.outputs_by_name[name].type
        raise InvalidInput("model_name", f"expected a first output of numbers, got {name}: {kind}; use ModelInfer")
    values = value.astype(np.float32).reshape(-1)
    response = PredictResponse(shape=value.shape)
    if values.size < LONG_ELEMENTS:
        response.predictions.extend(values.tolist())
    else:
        # A packed field has the bytes of the tensor. Joining them releases the interpreter's lock.
        packed = encode_tensor(values, "FP32")
        return b"".join((response.SerializeToString(), write_head(_PREDICTIONS, len(packed)), packed))
    serialized: bytes = response.SerializeToString()
    return serialized
