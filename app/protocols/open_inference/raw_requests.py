"""A body that is nothing but the bytes of one tensor: for models with one input, whose shape the bytes then say."""

from math import prod

import numpy as np

from app.inference.pipeline import FindSpec, no_timeout_ms
from app.protocols.codec import Target
from app.protocols.open_inference.datatypes import from_raw, item_bytes
from app.protocols.open_inference.infer_request import read_request
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, ParsedRequest
from app.protocols.open_inference.signature import TensorSignature, signature_for
from frameworks.errors import InvalidInput
from frameworks.types import Array, ModelSpec


def read_raw_question(body: memoryview, target: Target, find_spec: FindSpec) -> InferRequest:
    """Its outputs are binary, as Triton has them. Raises InvalidInput, and what `find_spec` raises."""
    assert target.model is not None
    spec = find_spec(target.model, target.version, no_timeout_ms)
    sole = _sole_input(spec)
    value = _read_string(body, sole) if sole.datatype == "BYTES" else _read_numbers(body, sole)
    question = ParsedRequest([InputTensor(sole.name, sole.datatype, value)], parameters={"binary_data_output": True})
    return read_request(question, spec)


def _sole_input(spec: ModelSpec) -> TensorSignature:
    required = [tensor for tensor in signature_for(spec).inputs.values() if tensor.required]
    if len(required) != 1:
        raise InvalidInput(
            "inputs", "a body of bytes alone is for models with one input; send the JSON that names them"
        )
    return required[0]


def _read_string(body: memoryview, sole: TensorSignature) -> Array:
    """All of the body is one string, without a length."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"inputs.{sole.name}", f"the body is no UTF-8: {error.reason}") from None
    return np.array([text], dtype=object).reshape([1] * len(sole.shape or (1,)))


def _read_numbers(body: memoryview, sole: TensorSignature) -> Array:
    """One free dimension is solved from the number of bytes; of several the first is one row."""
    field, wants = f"inputs.{sole.name}", f"the model wants {sole.datatype} {list(sole.shape or ())}"
    shape = list(sole.shape or (-1,))
    if shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    free = [axis for axis, size in enumerate(shape) if size == -1]
    if len(free) > 1:
        raise InvalidInput(field, f"{wants}; bytes alone cannot say that shape: send the JSON that does")
    if free:
        step = item_bytes(sole.datatype) * prod(size for size in shape if size != -1)
        if not step or len(body) % step:
            raise InvalidInput(field, f"the body has {len(body)} bytes, no multiple of {step}; {wants}")
        shape[free[0]] = len(body) // step
    return from_raw(body, sole.datatype, tuple(shape), field)
