"""Make texts and tensors from the description of a model."""

import random
from dataclasses import dataclass
from math import prod
from typing import Any

_MAX_VALUES = 1 << 22

_TEXT = (
    "a about after all also an and any are as at be because been before between but by can city could day do down each "
    "early even every few find first for from get give good great had has have he her here high his how if in into is "
    "it its just know large last late like line little long made make many may means more most much must new no not "
    "now number of off old on one only open or other our out over own paper part people place point right river same "
    "say see set she should show side small so some state still stone street such take tell than that the their them "
    "then there these they thing think this those through time to today town two under up use very water way we well "
    "were what when where which while will winter with wood word work world would write year you young"
)
_WORDS = _TEXT.split()

# Zero and one are valid in token ids, masks and segment ids of every vocabulary.
_MAX_INTEGER = 1
_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16", "fp16", "fp32", "fp64", "bf16"})
_STRINGS = frozenset({"string", "bytes"})


class CannotMake(Exception):
    """No input can be made from this description; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Made:
    """How inputs are made. `rows`: texts or rows of tensors of a request. `length`: of every other free dimension.

    `words`: fewest and most words of a text. `distinct`: number of different requests. `images`: files that are given,
    and their content types.
    """

    rows: int = 1
    length: int = 16
    words: tuple[int, int] = (8, 32)
    max_tokens: int = 32
    is_streamed: bool = True
    distinct: int = 64
    seed: int = 0
    images: tuple[tuple[bytes, str], ...] = ()


def text(made: Made, draw: random.Random) -> str:
    """Return random words."""
    return " ".join(draw.choices(_WORDS, k=draw.randint(*made.words)))


def inputs_of(description: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs of a model. Raises CannotMake unless it describes them."""
    inputs = description.get("inputs")
    is_list = isinstance(inputs, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in inputs
    )
    if not inputs or not is_list:
        raise CannotMake("--model: expected a model that describes its inputs, got none; give --input FILE")
    return list(inputs)


def native_tensor(tensor: dict[str, Any], made: Made, draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return name and tensor in the native form. Raises CannotMake."""
    shape = _shape(tensor, made)
    dtype = str(tensor.get("dtype"))
    return tensor["name"], {"data": _values(tensor["name"], dtype, shape, made, draw), "shape": shape}


def v2_tensor(tensor: dict[str, Any], made: Made, draw: random.Random) -> dict[str, Any]:
    """Return a tensor in the form of the Open Inference Protocol, its values as a flat list. Raises CannotMake."""
    name, shape, datatype = tensor["name"], _shape(tensor, made), str(tensor.get("datatype"))
    return {
        "name": name,
        "shape": shape,
        "datatype": datatype,
        "data": _values(name, datatype, shape, made, draw),
    }


def _shape(tensor: dict[str, Any], made: Made) -> list[int]:
    """Fill the free dimensions: the first with the rows, the others with the length."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise CannotMake(f'--model: expected a shape of input "{tensor["name"]}", got none; give --input FILE')
    sizes = [size if size >= 0 else (made.length if axis else made.rows) for axis, size in enumerate(shape)]
    if (count := prod(sizes)) > _MAX_VALUES:
        raise CannotMake(f'--model: expected at most {_MAX_VALUES} values of "{tensor["name"]}", got {count}')
    return sizes


def _values(name: str, dtype: str, shape: list[int], made: Made, draw: random.Random) -> list[Any]:
    count, dtype = prod(shape), dtype.lower()
    if dtype in _FLOATS:
        return [round(draw.random(), 4) for _ in range(count)]
    if dtype in _STRINGS:
        return [text(made, draw) for _ in range(count)]
    if dtype == "bool":
        return [draw.random() < 0.5 for _ in range(count)]
    if dtype.startswith(("int", "uint")):
        return [draw.randint(0, _MAX_INTEGER) for _ in range(count)]
    raise CannotMake(f'--model: expected numbers, texts or booleans as input "{name}", got {dtype}; give --input FILE')
