"""Write requests of the Open Inference Protocol: as JSON, or with binary tensors."""

import random
from math import prod
from typing import Any

import numpy as np
import orjson

from app.protocols.open_inference.datatypes import BINARY_ONLY, encode_tensor, numpy_dtype
from extensions.load_test.inputs.tensors import CannotMake, Made, inputs_of, text, v2_tensor
from frameworks.core.errors import InvalidInput

# Inputs of a model that generates text, as vLLM's backend of Triton names them.
_PROMPT, _MAX_TOKENS = "text_input", "max_tokens"
_MAX_RANK = 32

Raw = bytes | memoryview


def needs_binary(description: dict[str, Any]) -> bool:
    """Report whether a tensor of the model has a datatype that JSON cannot represent."""
    tensors = [*_listed(description, "inputs"), *_listed(description, "outputs")]
    return any(isinstance(each, dict) and each.get("datatype") in BINARY_ONLY for each in tensors)


def generates_text(description: dict[str, Any]) -> bool:
    """Report whether the model continues a prompt."""
    return any(isinstance(each, dict) and each.get("name") == _PROMPT for each in _listed(description, "inputs"))


def made_request(description: dict[str, Any], made: Made, draw: random.Random) -> dict[str, Any]:
    """Return the JSON form of a request with random values. Raises CannotMake."""
    inputs = inputs_of(description)
    if not generates_text(description):
        return {"inputs": [v2_tensor(each, made, draw) for each in inputs]}
    prompt = {"name": _PROMPT, "shape": [1], "datatype": "BYTES", "data": [text(made, draw)]}
    limit = next((each for each in inputs if each["name"] == _MAX_TOKENS), None)
    if limit is None:
        return {"inputs": [prompt], "parameters": {_MAX_TOKENS: made.max_tokens}}
    shape = limit.get("shape")
    rank = len(shape) if isinstance(shape, list) else 1
    tensor = {"name": _MAX_TOKENS, "shape": [1] * rank, "datatype": limit.get("datatype"), "data": [made.max_tokens]}
    return {"inputs": [prompt | {"shape": [1] * rank}, tensor]}


def binary_request(request: dict[str, Any]) -> tuple[bytes, int]:
    """Return a body with binary tensors and the bytes of its JSON; outputs are asked for in binary form too.

    `request`: in JSON form. Raises ValueError, which names the field.
    """
    tensors = []
    raws = []
    for name, tensor in checked_inputs(request):
        raw = raw_tensor(tensor, name)
        raws.append(raw)
        rest = {key: value for key, value in tensor.items() if key != "data"}
        size = len(raw)
        tensors.append(rest | {"parameters": _object(tensor, "parameters", name) | {"binary_data_size": size}})
    parameters = {"binary_data_output": True} | _object(request, "parameters", "request")
    head = orjson.dumps(request | {"inputs": tensors, "parameters": parameters})
    return b"".join([head, *raws]), len(head)


def json_request(request: dict[str, Any]) -> bytes:
    """Return a body that is JSON. Raises CannotMake for a tensor that JSON cannot represent."""
    for _, tensor in checked_inputs(request):
        if tensor.get("datatype") in BINARY_ONLY:
            raise CannotMake(f"--no-binary: expected datatypes of JSON, got {tensor['datatype']}; leave it out")
    return orjson.dumps(request)


def checked_inputs(request: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a name for messages and the object of each input. Raises ValueError unless there are any."""
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(each, dict) for each in inputs):
        raise ValueError("inputs: expected a list of objects, got another value")
    return [(f"inputs[{index}]", each) for index, each in enumerate(inputs)]


def checked_shape(tensor: dict[str, Any], field: str) -> list[int]:
    """Raises ValueError unless the tensor has a shape."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(_is_size(size) for size in shape):
        raise ValueError(f"{field}.shape: expected a list of sizes, got another value")
    return shape


def raw_tensor(tensor: dict[str, Any], field: str) -> Raw:
    """Return the bytes of a tensor in JSON form. Raises ValueError, which names the field."""
    datatype, count = str(tensor.get("datatype")), prod(checked_shape(tensor, field))
    data = tensor.get("data")
    if not isinstance(data, list):
        raise ValueError(f"{field}.data: expected a list, got another value")
    try:
        array = np.array(data, dtype=numpy_dtype(datatype, field)).reshape(-1)
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{field}.data: expected values of {datatype}, got others ({error})") from None
    if array.size != count:
        raise ValueError(f"{field}.data: expected {count} values, got {array.size}")
    if datatype == "BYTES" and not all(isinstance(each, str) for each in array):
        raise ValueError(f"{field}.data: expected strings, got other values")
    return encode_tensor(array, datatype)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31


def _listed(description: dict[str, Any], name: str) -> list[Any]:
    listed = description.get(name)
    return listed if isinstance(listed, list) else []


def _object(holder: dict[str, Any], name: str, field: str) -> dict[str, Any]:
    found = holder.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{field}.{name}: expected an object, got another value")
    return found
