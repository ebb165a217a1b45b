"""Parse ONNX Runtime's spelling of types, like `seq(map(int64,tensor(float)))`."""

import onnxruntime as ort

from frameworks.core.errors import InvalidModel
from frameworks.types import MapType, OptionalType, SequenceType, TensorType, ValueType

_DTYPES = {
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "string": "string",
}


def read_type(argument: ort.NodeArg) -> ValueType:
    """Return the type of a graph's input or output. Raises InvalidModel for an unsupported one (sparse, float8, …)."""
    try:
        return _parse(argument.type, argument.shape)
    except (KeyError, ValueError):
        raise InvalidModel(
            f'"{argument.name}": expected a tensor of {", ".join(_DTYPES.values())}, or a sequence, map or optional of '
            f"them, got {argument.type}"
        ) from None


def _parse(text: str, shape: list[int | str | None]) -> ValueType:
    kind, _, rest = text.strip().partition("(")
    inner = rest.removesuffix(")")
    match kind:
        case "tensor":
            # ONNX Runtime gives [] both for a scalar and for a tensor of undeclared rank, so either is accepted.
            dimensions = tuple(d if isinstance(d, int) and d >= 0 else -1 for d in shape) or None
            return TensorType(_DTYPES[inner], dimensions)
        case "seq":
            return SequenceType(_parse(inner, []))
        case "optional":
            return OptionalType(_parse(inner, shape))
        case "map":
            key, _, value = inner.partition(",")
            return MapType(_DTYPES[key.strip()], _parse(value, []))
    raise ValueError(text)
