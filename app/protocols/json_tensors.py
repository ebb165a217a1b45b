"""One JSON value read as the type that a model declares: tensor, sequence, map or optional."""

import re
from math import prod
from typing import Any

import numpy as np

from app.protocols.json_body import Document, Node, NonNumericArray, NumberKind, RaggedArray, describe_type, flatten
from app.protocols.shapes import read_sizes
from frameworks.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array, MapType, OptionalType, SequenceType, TensorType, Value, ValueType

_TENSOR_FIELDS = ("data", "shape", "dtype")
_BFLOAT16_INFINITY = np.float32(2.0**128 - 2.0**119)  # from here on the nearest bfloat16 is an infinity
_FEW = 1024
_SQUARES_THAT_FIT = {"float16": 65504.0**2, "bfloat16": 1.15e77, "float32": 1.15e77}
_INT_KEY = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


def read_value(document: Document, node: Node, wanted: ValueType, field: str) -> Value:
    """Raises InvalidInput, which names `field`, what came and what is wanted."""
    match wanted:
        case OptionalType():
            return None if node is None else read_value(document, node, wanted.inner, field)
        case SequenceType():
            return _read_sequence(document, node, wanted, field)
        case MapType():
            return _read_map(document, node, wanted, field)
        case TensorType():
            tensor, _ = read_tensor(document, node, wanted, field)
            return tensor


def read_tensor(document: Document, node: Node, wanted: TensorType, field: str) -> tuple[Array, bool]:
    """The tensor, of the dtype's numpy type, in the shape that came; and whether it came as a flat list.

    An object with `data`, `shape` and `dtype` is taken as well. Raises InvalidInput.
    """
    if document.is_object(node):
        return _read_described(document, node, wanted, field)
    if not document.is_array(node):
        return _read_scalar(node, wanted, field), False
    try:
        if wanted.dtype in ("string", "bool"):
            tensor, shape = _read_plain(document, node, wanted, field)
        else:
            numbers, shape = document.numbers(node, _kind(wanted.dtype))
            tensor = narrow(numbers, wanted.dtype, field)
    except RaggedArray as error:
        raise InvalidInput(field, f"the array is ragged: {error}") from None
    except NonNumericArray as error:
        raise InvalidInput(field, f"{error}; the model wants {wanted.dtype}") from None
    return tensor.reshape(shape), len(shape) == 1


def _read_described(document: Document, node: Node, wanted: TensorType, field: str) -> tuple[Array, bool]:
    members = document.members(node, _TENSOR_FIELDS, within=f"{field}.")
    if "data" not in members:
        raise InvalidInput(field, 'an object must have "data"; "shape" and "dtype" may stand beside it')
    dtype = members.get("dtype", wanted.dtype)
    if dtype != wanted.dtype:
        came = f'"{dtype[:40]}"' if isinstance(dtype, str) else describe_type(dtype)
        raise InvalidInput(f"{field}.dtype", f'is {came}, and the model wants "{wanted.dtype}"')
    data = members["data"]
    if document.is_object(data):
        raise InvalidInput(f"{field}.data", "is an object; wants numbers or strings, flat or nested")
    tensor, flat = read_tensor(document, data, wanted, f"{field}.data")
    if "shape" not in members:
        return tensor, flat
    shape = read_sizes(document.python(members["shape"]), f"{field}.shape")
    if flat or tensor.ndim == 0:
        if prod(shape) != tensor.size:
            raise InvalidInput(
                f"{field}.shape", f"{list(shape)} holds {prod(shape)} elements, and data has {tensor.size}"
            )
        return tensor.reshape(shape), False
    if tensor.shape != shape:
        raise InvalidInput(f"{field}.shape", f"is {list(shape)}, and the nested data has {list(tensor.shape)}")
    return tensor, False


def _read_scalar(node: Node, wanted: TensorType, field: str) -> Array:
    fits = {"string": str, "bool": bool}.get(wanted.dtype)
    if fits is None and type(node) in (int, float):
        if type(node) is float and _kind(wanted.dtype) != "float":
            raise InvalidInput(field, f"is {node!r}; the model wants {wanted.dtype}")
        try:
            wide = np.array(
                [node], dtype={"float": np.float64, "int": np.int64, "uint": np.uint64}[_kind(wanted.dtype)]
            )
        except OverflowError:
            raise InvalidInput(field, f"is {node}, out of the range of {wanted.dtype}") from None
        return narrow(wide, wanted.dtype, field).reshape(())
    if fits is None or type(node) is not fits:
        raise InvalidInput(field, f"is {describe_type(node)}; the model wants {wanted.dtype}, flat or nested in arrays")
    return np.array(node, dtype=NUMPY_DTYPES[wanted.dtype])


def _read_plain(document: Document, node: Node, wanted: TensorType, field: str) -> tuple[Array, tuple[int, ...]]:
    """Strings and booleans, by way of Python objects. 0 and 1 are taken for booleans too."""
    flat, shape = flatten(document.python(node))
    fits = {str} if wanted.dtype == "string" else {bool, int}
    strangers = set(map(type, flat)) - fits
    if strangers or (wanted.dtype == "bool" and not set(flat) <= {0, 1}):
        stranger = next(v for v in flat if type(v) not in fits or (wanted.dtype == "bool" and v not in (0, 1)))
        raise InvalidInput(field, f"holds {describe_type(stranger)}; the model wants {wanted.dtype}")
    tensor = np.empty(len(flat), dtype=NUMPY_DTYPES[wanted.dtype])
    tensor[:] = flat
    return tensor, shape


def _read_sequence(document: Document, node: Node, wanted: SequenceType, field: str) -> list[Any]:
    if not document.is_array(node):
        raise InvalidInput(field, f"is {describe_type(node)}; the model wants {wanted}, a list")
    return [read_value(document, item, wanted.element, f"{field}[{i}]") for i, item in enumerate(node)]


def _read_map(document: Document, node: Node, wanted: MapType, field: str) -> dict[Any, Any]:
    if not document.is_object(node):
        raise InvalidInput(field, f"is {describe_type(node)}; the model wants {wanted}, an object")
    result: dict[Any, Any] = {}
    members = document.python(node)
    if len(members) != len(node):
        raise InvalidInput(field, "has a key given twice; leave one")
    for name, value in members.items():
        key: Any = name
        if wanted.key != "string":
            # int() would take " 1" and "1_0" as well, and two spellings of one key would hide each other.
            if not _INT_KEY.fullmatch(name) or not -(2**63) <= int(name) < 2**63:
                raise InvalidInput(field, f'has the key "{name[:40]}"; the model wants {wanted.key} keys')
            key = int(name)
        if not isinstance(wanted.value, TensorType) or type(value) not in (int, float, str, bool):
            raise InvalidInput(f"{field}.{name[:40]}", f"is {describe_type(value)}; the model wants {wanted.value}")
        result[key] = _read_scalar(value, wanted.value, f"{field}.{name[:40]}").item()
    return result


def _kind(dtype: str) -> NumberKind:
    if "float" in dtype:
        return "float"
    return "uint" if dtype == "uint64" else "int"


def narrow(numbers: Array, dtype: str, field: str) -> Array:
    """float64, int64 or uint64 numbers in the model's own dtype. Raises InvalidInput where one is out of its range."""
    target = NUMPY_DTYPES[dtype]
    if numbers.dtype == target:
        return numbers
    if target.kind == "f":
        # vdot, as it says nothing where the sum overflows; `dot` warns.
        if numbers.size <= _FEW and float(np.vdot(numbers, numbers)) <= _SQUARES_THAT_FIT[dtype]:
            # No number of few is larger than the root of the sum of their squares: told in a tenth of the time.
            return numbers.astype(target)
        with np.errstate(over="ignore"):
            narrowed = numbers.astype(target)
        # JSON has no infinities: any that is here came from a number too large.
        fits = np.isfinite(narrowed) if dtype != "bfloat16" else np.abs(narrowed) < _BFLOAT16_INFINITY
        if not fits.all():
            raise InvalidInput(field, f"holds {numbers[~fits][0]:g}, out of the range of {dtype}")
        return narrowed
    bounds = np.iinfo(target)
    if numbers.size and (numbers.min() < bounds.min or numbers.max() > bounds.max):
        outside = numbers[(numbers < bounds.min) | (numbers > bounds.max)][0]
        raise InvalidInput(field, f"holds {outside}, outside {bounds.min} to {bounds.max} of {dtype}")
    return numbers.astype(target)
