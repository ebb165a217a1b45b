"""Read a JSON value as the type that a model declares: tensor, sequence, map or optional."""

import re
from math import prod
from typing import Any

import numpy as np

from app.protocols.shared.json.body import (
    Document,
    Node,
    NonNumericArray,
    NumberKind,
    RaggedArray,
    describe_type,
    flatten,
)
from app.protocols.shared.json.scan import LongObject
from app.protocols.shared.json.shapes import read_sizes
from frameworks.core.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array, MapType, OptionalType, SequenceType, TensorType, Value, ValueType

_TENSOR_FIELDS = ("data", "shape", "dtype")
_BFLOAT16_INFINITY = np.float32(2.0**128 - 2.0**119)  # from here on the nearest bfloat16 is an infinity
_FEW_NUMBERS = 1024
_MAX_SUM_OF_SQUARES = {"float16": 65504.0**2, "bfloat16": 1.15e77, "float32": 1.15e77}
_INT_KEY = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


def read_value(document: Document, node: Node, declared: ValueType, field: str) -> Value:
    """Read a value of any declared type. Raises InvalidInput, which names `field`, the expected and the given type."""
    match declared:
        case OptionalType():
            return None if node is None else read_value(document, node, declared.inner, field)
        case SequenceType():
            return _read_sequence(document, node, declared, field)
        case MapType():
            return _read_map(document, node, declared, field)
        case TensorType():
            tensor, _ = read_tensor(document, node, declared, field)
            return tensor


def read_tensor(document: Document, node: Node, declared: TensorType, field: str) -> tuple[Array, bool]:
    """Read a tensor from nested lists, a scalar, or an object with `data`, `shape` and `dtype`.

    Returns the tensor, of the dtype's numpy type and in the given shape, and whether it was a flat list. Raises
    InvalidInput.
    """
    if document.is_object(node):
        return _read_described(document, node, declared, field)
    if not document.is_array(node):
        return _read_scalar(node, declared, field), False
    try:
        if declared.dtype in ("string", "bool"):
            tensor, shape = _read_plain(document, node, declared, field)
        else:
            numbers, shape = document.numbers(node, "float32" if declared.dtype == "float32" else _kind(declared.dtype))
            tensor = narrow(numbers, declared.dtype, field)
    except RaggedArray as error:
        raise InvalidInput(field, f"expected rows of equal length, got a ragged array: {error}") from None
    except NonNumericArray as error:
        raise InvalidInput(field, f"expected {declared.dtype}, got {error}") from None
    return tensor.reshape(shape), len(shape) == 1


def _read_described(document: Document, node: Node, declared: TensorType, field: str) -> tuple[Array, bool]:
    members = document.members(node, _TENSOR_FIELDS, within=f"{field}.")
    if "data" not in members:
        raise InvalidInput(field, 'expected an object with "data", and optionally "shape" and "dtype"')
    dtype = members.get("dtype", declared.dtype)
    if dtype != declared.dtype:
        given = f'"{dtype[:40]}"' if isinstance(dtype, str) else describe_type(dtype)
        raise InvalidInput(f"{field}.dtype", f'expected "{declared.dtype}", got {given}')
    data = members["data"]
    if document.is_object(data):
        raise InvalidInput(f"{field}.data", "expected numbers or strings, flat or nested, got an object")
    tensor, flat = read_tensor(document, data, declared, f"{field}.data")
    if "shape" not in members:
        return tensor, flat
    shape = read_sizes(document.python(members["shape"]), f"{field}.shape")
    if flat or tensor.ndim == 0:
        if prod(shape) != tensor.size:
            raise InvalidInput(
                f"{field}.shape", f"expected a shape of {tensor.size} elements, as data has, got {list(shape)}"
            )
        return tensor.reshape(shape), False
    if tensor.shape != shape:
        # Nested lists end at an empty dimension: [[], []] may have the shape [2, 0, 4].
        if not tensor.size and shape[: tensor.ndim] == tensor.shape:
            return tensor.reshape(shape), False
        raise InvalidInput(f"{field}.shape", f"expected {list(tensor.shape)}, as data has, got {list(shape)}")
    return tensor, False


def _read_scalar(node: Node, declared: TensorType, field: str) -> Array:
    fits = {"string": str, "bool": bool}.get(declared.dtype)
    if fits is None and type(node) in (int, float):
        if type(node) is float and _kind(declared.dtype) != "float":
            raise InvalidInput(field, f"expected {declared.dtype}, got {node!r}")
        try:
            wide = np.array(
                [node], dtype={"float": np.float64, "int": np.int64, "uint": np.uint64}[_kind(declared.dtype)]
            )
        except OverflowError:
            raise InvalidInput(field, f"expected a number in the range of {declared.dtype}, got {node}") from None
        return narrow(wide, declared.dtype, field).reshape(())
    if fits is None or type(node) is not fits:
        raise InvalidInput(field, f"expected {declared.dtype}, flat or nested in arrays, got {describe_type(node)}")
    return np.array(node, dtype=NUMPY_DTYPES[declared.dtype])


def _read_plain(document: Document, node: Node, declared: TensorType, field: str) -> tuple[Array, tuple[int, ...]]:
    """Read strings or booleans through Python objects. 0 and 1 are booleans too."""
    flat, shape = flatten(document.python(node))
    fits = {str} if declared.dtype == "string" else {bool, int}
    if not fits.issuperset(map(type, flat)) or (declared.dtype == "bool" and not set(flat) <= {0, 1}):
        wrong = next(v for v in flat if type(v) not in fits or (declared.dtype == "bool" and v not in (0, 1)))
        raise InvalidInput(field, f"expected {declared.dtype}, got {describe_type(wrong)} in it")
    tensor = np.empty(len(flat), dtype=NUMPY_DTYPES[declared.dtype])
    tensor[:] = flat
    return tensor, shape


def _read_sequence(document: Document, node: Node, declared: SequenceType, field: str) -> list[Any]:
    if not document.is_array(node):
        raise InvalidInput(field, f"expected a list for {declared}, got {describe_type(node)}")
    return [
        read_value(document, item, declared.element, f"{field}[{i}]") for i, item in enumerate(document.items(node))
    ]


def _read_map(document: Document, node: Node, declared: MapType, field: str) -> dict[Any, Any]:
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object for {declared}, got {describe_type(node)}")
    result: dict[Any, Any] = {}
    members = document.python(node)
    if not isinstance(node, LongObject) and len(members) != len(node):
        raise InvalidInput(field, "expected different keys, got one of them twice; leave one out")
    for name, value in members.items():
        key: Any = name
        if declared.key != "string":
            # int() also accepts " 1" and "1_0"; two spellings of one key would overwrite each other.
            if not _INT_KEY.fullmatch(name) or not -(2**63) <= int(name) < 2**63:
                raise InvalidInput(field, f'expected {declared.key} keys, got "{name[:40]}"')
            key = int(name)
        if not isinstance(declared.value, TensorType) or type(value) not in (int, float, str, bool):
            raise InvalidInput(f"{field}.{name[:40]}", f"expected {declared.value}, got {describe_type(value)}")
        result[key] = _read_scalar(value, declared.value, f"{field}.{name[:40]}").item()
    return result


def _kind(dtype: str) -> NumberKind:
    if "float" in dtype:
        return "float"
    return "uint" if dtype == "uint64" else "int"


def narrow(numbers: Array, dtype: str, field: str) -> Array:
    """Convert float64, int64 or uint64 numbers to the model's dtype. Raises InvalidInput for one out of its range."""
    target = NUMPY_DTYPES[dtype]
    if numbers.dtype == target:
        return numbers
    if target.kind == "f":
        # `vdot` overflows without a warning; `dot` warns.
        if numbers.size <= _FEW_NUMBERS and float(np.vdot(numbers, numbers)) <= _MAX_SUM_OF_SQUARES[dtype]:
            # No number exceeds the root of the sum of squares. This check takes a tenth of the time of the next.
            return numbers.astype(target)
        with np.errstate(over="ignore"):
            narrowed = numbers.astype(target)
        # JSON has no infinities: every infinity is a number that was too large.
        fits = np.isfinite(narrowed) if dtype != "bfloat16" else np.abs(narrowed) < _BFLOAT16_INFINITY
        if not fits.all():
            raise InvalidInput(field, f"expected numbers in the range of {dtype}, got {numbers[~fits][0]:g}")
        return narrowed
    bounds = np.iinfo(target)
    if numbers.size and (numbers.min() < bounds.min or numbers.max() > bounds.max):
        outside = numbers[(numbers < bounds.min) | (numbers > bounds.max)][0]
        raise InvalidInput(field, f"expected {dtype}, from {bounds.min} to {bounds.max}, got {outside}")
    return numbers.astype(target)
