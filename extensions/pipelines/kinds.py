"""Define the types of values between steps: tensors, texts, images and predictions."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from frameworks.types import NUMPY_DTYPES, MapType, SequenceType, TensorType, ValueType


@dataclass(frozen=True, slots=True)
class ImagesType:
    """Images: a list of files as bytes, or of pixels, uint8 [height, width, 3]."""

    def __str__(self) -> str:
        return "image"


@dataclass(frozen=True, slots=True)
class PredictionsType:
    """For each row its (label, score) pairs, highest score first. `labels`: all that may occur."""

    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "predictions"


@dataclass(frozen=True, slots=True)
class AnyType:
    """A value of any type: what a function reads."""

    def __str__(self) -> str:
        return "any type"


Kind = ValueType | ImagesType | PredictionsType | AnyType
StepValue = Any
"""A Value of frameworks.types, a list of images, or a list of predictions."""
Values = dict[str, StepValue]

TEXTS = TensorType("string", (-1,))
IMAGES = ImagesType()
PREDICTIONS_VALUE = SequenceType(MapType("string", TensorType("float32", ())))
"""Predictions in an answer with named outputs."""
FLOATS = ("float32", "float16", "bfloat16", "float64")
_WIDENED = {("int32", "int64"), ("int8", "int64"), ("uint8", "int64"), ("int16", "int64"), ("uint8", "float32")}
_TENSOR = re.compile(r"([a-z]+[0-9]*)\[([-0-9, ]*)\]")


def parse_kind(text: str) -> Kind:
    """Return the type that a text names: `text`, `image`, or a tensor like `float32[-1, 4]`. Raises ValueError."""
    if text == "text":
        return TEXTS
    if text == "image":
        return IMAGES
    match = _TENSOR.fullmatch(text)
    if match is not None and match[1] in NUMPY_DTYPES:
        try:
            shape = tuple(int(part) for part in match[2].split(",")) if match[2].strip() else ()
        except ValueError:
            shape = (-2,)
        if all(dimension >= -1 for dimension in shape):
            return TensorType(match[1], shape)
    raise ValueError('expected "text", "image", or a tensor like "float32[-1, 4]"')


def describe(kind: Kind) -> str:
    """Return a type as messages and configurations have it."""
    if kind == TEXTS:
        return "text"
    if isinstance(kind, TensorType):
        shape = "any shape" if kind.shape is None else ", ".join(map(str, kind.shape))
        return f"{kind.dtype}[{shape}]"
    return str(kind)


def fits(wanted: Kind, given: Kind) -> bool:
    """Whether values of one type may be read as another. Free dimensions fit all numbers, and floats all floats."""
    if isinstance(wanted, AnyType):
        return True
    if isinstance(wanted, TensorType) and isinstance(given, TensorType):
        return _fits_dtype(wanted.dtype, given.dtype) and merged_shape(wanted.shape, given.shape) is not False
    return type(wanted) is type(given) and (isinstance(wanted, ImagesType | PredictionsType) or wanted == given)


def merged(one: Kind, other: Kind) -> Kind | None:
    """Return the type of a value that two steps read; None where no value fits both."""
    if isinstance(one, AnyType):
        return other
    if isinstance(other, AnyType):
        return one
    if not fits(one, other):
        one, other = other, one
        if not fits(one, other):
            return None
    if isinstance(one, TensorType) and isinstance(other, TensorType):
        shape = merged_shape(one.shape, other.shape)
        assert shape is not False
        return TensorType(one.dtype, shape)
    return one


def merged_shape(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | Literal[False] | None:
    """Return the shape that fits both; False where none does. None is any shape."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return False
    dimensions = [max(a, b) if min(a, b) == -1 else (a if a == b else None) for a, b in zip(one, other, strict=True)]
    return False if None in dimensions else tuple(each for each in dimensions if each is not None)


def _fits_dtype(wanted: str, given: str) -> bool:
    return wanted == given or (wanted in FLOATS and given in FLOATS) or (given, wanted) in _WIDENED
