"""Turn the spec of a model into a plain value of msgpack, and back.

The forms of this module have the fields of the specs. Types of values are tagged, so that one can be told from another.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Union, get_type_hints

import msgspec
from msgspec import Struct

from frameworks.core.channel.messages import ProtocolError
from frameworks.types import (
    MapType,
    ModelSpec,
    OptionalType,
    SequenceSpec,
    SequenceType,
    TensorType,
    ValueSpec,
    ValueType,
)


class TensorForm(Struct, frozen=True, array_like=True, tag="tensor"):
    """Form of a TensorType."""

    dtype: str
    shape: tuple[int, ...] | None


class SequenceForm(Struct, frozen=True, array_like=True, tag="sequence"):
    """Form of a SequenceType."""

    element: "TypeForm"


class MapForm(Struct, frozen=True, array_like=True, tag="map"):
    """Form of a MapType."""

    key: str
    value: "TypeForm"


class OptionalForm(Struct, frozen=True, array_like=True, tag="optional"):
    """Form of an OptionalType."""

    inner: "TypeForm"


TypeForm = Union[TensorForm, SequenceForm, MapForm, OptionalForm]  # noqa: UP007 - the forms name it before it exists


class ValueForm(Struct, frozen=True, array_like=True):
    """Form of a ValueSpec."""

    name: str
    type: TypeForm
    required: bool


class SequenceSpecForm(Struct, frozen=True, array_like=True):
    """Form of a SequenceSpec. Integers stay integers in `pad_values`."""

    axis: int
    pad_values: Mapping[str, int | float]
    mask: ValueForm | None
    output_axes: Mapping[str, tuple[int, ...]]
    unpadded_because: str | None


_CHANGED = {"inputs": tuple[ValueForm, ...], "outputs": tuple[ValueForm, ...], "sequence": SequenceSpecForm | None}
_HINTS = get_type_hints(ModelSpec) | _CHANGED
_NAMES = tuple(each.name for each in fields(ModelSpec) if each.init)
_SpecForm = msgspec.defstruct("_SpecForm", [(name, _HINTS[name]) for name in _NAMES], frozen=True)


def spec_to_plain(spec: ModelSpec) -> Struct:
    """Return the plain value of a spec."""
    content = {name: getattr(spec, name) for name in _NAMES}
    content["inputs"] = tuple(map(_value_form, spec.inputs))
    content["outputs"] = tuple(map(_value_form, spec.outputs))
    content["sequence"] = None if spec.sequence is None else _sequence_form(spec.sequence)
    return _SpecForm(**content)


def spec_from_plain(plain: object) -> ModelSpec:
    """Return the spec. Raises ProtocolError for a damaged one."""
    try:
        form = msgspec.convert(plain, _SpecForm)
        content = msgspec.structs.asdict(form)
        content["inputs"] = tuple(map(_value_spec, content["inputs"]))
        content["outputs"] = tuple(map(_value_spec, content["outputs"]))
        content["sequence"] = None if content["sequence"] is None else _sequence_spec(content["sequence"])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"spec: expected the fields of a model's spec, got others ({error})") from None
    return ModelSpec(**content)


def _type_form(value: ValueType) -> TypeForm:
    match value:
        case TensorType(dtype, shape):
            return TensorForm(dtype, shape)
        case SequenceType(element):
            return SequenceForm(_type_form(element))
        case MapType(key, inner):
            return MapForm(key, _type_form(inner))
        case OptionalType(inner):
            return OptionalForm(_type_form(inner))


def _value_type(form: TypeForm) -> ValueType:
    match form:
        case TensorForm(dtype, shape):
            return TensorType(dtype, shape)
        case SequenceForm(element):
            return SequenceType(_value_type(element))
        case MapForm(key, inner):
            return MapType(key, _value_type(inner))
        case OptionalForm(inner):
            return OptionalType(_value_type(inner))


def _value_form(spec: ValueSpec) -> ValueForm:
    return ValueForm(spec.name, _type_form(spec.type), spec.required)


def _value_spec(form: ValueForm) -> ValueSpec:
    return ValueSpec(form.name, _value_type(form.type), form.required)


def _sequence_form(spec: SequenceSpec) -> SequenceSpecForm:
    mask = None if spec.mask is None else _value_form(spec.mask)
    return SequenceSpecForm(spec.axis, spec.pad_values, mask, spec.output_axes, spec.unpadded_because)


def _sequence_spec(form: SequenceSpecForm) -> SequenceSpec:
    mask = None if form.mask is None else _value_spec(form.mask)
    return SequenceSpec(form.axis, form.pad_values, mask, form.output_axes, form.unpadded_because)
