"""The commonest question by itself, in half the time: one flat tensor of floats in a short body, and nothing else."""

from typing import Any

import numpy as np
import orjson

from app.inference.pipeline import FindSpec, no_timeout_ms
from app.protocols.codec import Target
from app.protocols.json_tensors import narrow
from app.protocols.open_inference.datatypes import DTYPES
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.open_inference.signature import signature_for
from frameworks.types import DEFAULT_PRIORITY, TensorBatch

_INPUTS = {"inputs"}
_INPUTS_AND_ID = {"id", "inputs"}
_TENSOR = {"name", "shape", "datatype", "data"}
_FLOATS = frozenset({"FP32", "FP64"})
_NUMBERS = frozenset({int, float})


def read_short_question(body: bytes, target: Target, find_spec: FindSpec) -> InferRequest | None:
    """None where it is not as simple as that, and where it has to be refused, for which others have the words.

    Raises InvalidInput where a number is too large, and what `find_spec` raises.
    """
    given = _sole_tensor(body)
    if given is None:
        return None
    tensor, asked_as = given
    name, shape, datatype, data = tensor["name"], tensor["shape"], tensor["datatype"], tensor["data"]
    if type(name) is not str or type(shape) is not list or type(data) is not list:
        return None
    assert target.model is not None
    spec = find_spec(target.model, target.version, no_timeout_ms)
    signature = signature_for(spec)
    wanted = signature.inputs.get(name)
    if wanted is None or len(signature.inputs) > 1 or signature.refusal is not None or signature.binary_only:
        return None
    if datatype != wanted.datatype or datatype not in _FLOATS or not _fits(shape, wanted.shape):
        return None
    if not _NUMBERS.issuperset(map(type, data)):
        return None
    try:
        value = narrow(np.array(data, np.float64), DTYPES[datatype], f"inputs.{name}.data").reshape(shape)
    except (ValueError, OverflowError):
        return None
    return InferRequest(
        TensorBatch({name: value}, signature.output_names), spec, signature.wanted, asked_as, DEFAULT_PRIORITY, None
    )


def _sole_tensor(body: bytes) -> tuple[dict[str, Any], str] | None:
    """Its members, and the request's id."""
    try:
        root = orjson.loads(body)
    except ValueError:
        return None
    if type(root) is not dict or (root.keys() != _INPUTS and root.keys() != _INPUTS_AND_ID):
        return None
    given, asked_as = root["inputs"], root.get("id", "")
    if type(given) is not list or len(given) != 1 or type(asked_as) is not str:
        return None
    return (given[0], asked_as) if type(given[0]) is dict and given[0].keys() == _TENSOR else None


def _fits(shape: list[Any], declared: tuple[int, ...] | None) -> bool:
    if declared is None or len(shape) != len(declared):
        return False
    for size, wanted in zip(shape, declared, strict=True):
        if type(size) is not int or size < 0 or wanted not in (size, -1):
            return False
    return True
