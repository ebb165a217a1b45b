"""Make up inputs for the warm-up of a graph: shapes as declared, and values that operators accept."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from frameworks.onnx.graph_summary import ValueUse
from frameworks.scheduling.merging.padding import missing_mask
from frameworks.types import NUMPY_DTYPES, Array, MapType, ModelSpec, SequenceSpec, TensorType, Value, ValueSpec

# Length of a sequence at warm-up of a model without input_shape.
_TRIAL_LENGTH = 9
_END_OF_ANY_AXIS = 2**31 - 1


class ExampleValues:
    """Make up values for the required inputs of a graph.

    Free dimensions are those of input_shape, else 1, and a few for the sequence axis. The elements are 0, except where
    the graph reads them as sizes, axes, steps or divisors.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        spec: ModelSpec,
        input_shape: tuple[int, ...] | None,
        uses: Mapping[str, ValueUse],
    ) -> None:
        """`uses`: of the graph's values, by name."""
        self._inputs = [declared for declared in spec.inputs if declared.required]
        self._first = spec.inputs[0].name if spec.inputs else None
        self._outputs = spec.outputs_by_name
        self._sequence = spec.sequence
        self._input_shape = input_shape
        self._uses = uses
        self._names: dict[str, list[str | None]] = {
            a.name: [d if isinstance(d, str) else None for d in a.shape]
            for a in (*session.get_inputs(), *session.get_overridable_initializers())
        }
        assumed = {} if spec.sequence is None else self._name_sequence(spec.sequence)
        self._declared = {} if input_shape is None or self._first is None else self._sizes_of(self._first, input_shape)
        self._sizes = assumed | self._declared

    @property
    def reads_values(self) -> bool:
        """Whether some required input is more than floating-point data, so that a run may depend on its values."""
        return any(
            declared.name in self._uses
            or not isinstance(declared.type, TensorType)
            or "float" not in declared.type.dtype
            for declared in self._inputs
        )

    @property
    def has_guessed_shapes(self) -> bool:
        """Whether neither the graph nor input_shape declares the shape of a required input."""
        return any(self._is_guessed(declared) for declared in self._inputs)

    def make(self, number: int = 0) -> dict[str, Value]:
        """Return a value for each required input, and the mask. `number`: of inputs that are not read as sizes."""
        values = {declared.name: self._value(declared, number) for declared in self._inputs}
        shapes = {name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)}
        for name, value in values.items():
            if isinstance(value, np.ndarray) and (use := self._uses.get(name)) is not None:
                values[name] = self._as_used(value, use, shapes.get(use.first_input))
        if self._sequence is not None:
            values |= missing_mask(values, self._sequence) or {}
        return values

    def _sizes_of(self, name: str, shape: tuple[int, ...]) -> dict[str, int]:
        """Return the sizes that this shape of an input gives to free dimensions, by name."""
        return {n: size for n, size in zip(self._names[name], shape, strict=True) if n is not None}

    def _name_sequence(self, sequence: SequenceSpec) -> dict[str, int]:
        """Give the sequence's free dimension one name in all inputs, as their lengths are equal. Return that name and
        its length at warm-up without input_shape.
        """
        lists = [self._names[name] for name in sequence.pad_values]
        one_name = next((name for names in lists if (name := names[sequence.axis])), "the sequence axis")
        for names in lists:
            names[sequence.axis] = one_name
        return {one_name: _TRIAL_LENGTH}

    def _value(self, declared: ValueSpec, number: int) -> Value:
        kind = declared.type
        if isinstance(kind, MapType):
            return {"" if kind.key == "string" else 0: "" if str(kind.value) == "string" else 0}
        if not isinstance(kind, TensorType):
            return []
        shape: tuple[int, ...] = ()
        if kind.shape is not None:
            names = self._names[declared.name]
            shape = tuple(self._sizes.get(n or "", 1) if d < 0 else d for d, n in zip(kind.shape, names, strict=True))
        if self._input_shape is not None and declared.name == self._first:
            shape = self._input_shape
        # A Cast parses strings.
        return np.full(shape, "1" if kind.dtype == "string" else number, NUMPY_DTYPES[kind.dtype])

    def _is_guessed(self, declared: ValueSpec) -> bool:
        if self._input_shape is not None and declared.name == self._first:
            return False
        names = self._names[declared.name]
        shape = declared.shape
        return shape is None or any(d < 0 and n not in self._declared for d, n in zip(shape, names, strict=True))

    def _as_used(self, value: Array, use: ValueUse, data: tuple[int, ...] | None) -> Array:
        """Return a value that the operator accepts. `data`: shape of the node's first input; None if it is unknown."""
        if value.ndim > 1 or value.dtype.kind not in "iuf":
            return np.ones_like(value) if value.dtype.kind in "iuf" else value
        declared = self._outputs[use.output].shape if use.output in self._outputs else None
        elements = _sizes(use, value.size, declared, data) or _axes(use, value.size, data) or [1] * value.size
        limit = np.iinfo(value.dtype).max if value.dtype.kind != "f" else _END_OF_ANY_AXIS
        return np.array([min(number, limit) for number in elements]).astype(value.dtype).reshape(value.shape)


def _sizes(
    use: ValueUse, count: int, declared: tuple[int, ...] | None, data: tuple[int, ...] | None
) -> Sequence[int] | None:
    """Return `count` elements that the operator reads as sizes; None if it reads something else, or none are known.

    `declared`: shape of the node's output. `data`: shape of its first input.
    """
    match use.operator, use.position:
        case "Reshape", _:
            return _target(declared, count)
        case ("ConstantOfShape" | "Expand" | "MaxUnpool" | "CenterCropPad", _) | ("Resize", 3):
            shapes = [shape for shape in (declared, data) if shape is not None and len(shape) == count]
            return [max(1, size) for size in shapes[0]] if shapes else None
        case "AffineGrid", _ if declared is not None and data and len(declared) == count:
            return [data[0], 1, *(max(1, size) for size in declared[1:-1])]
        case "Col2Im", 1 if declared is not None and len(declared) == count + 2:
            return [max(1, size) for size in declared[2:]]
        case (("Split" | "SplitToSequence"), _) if data and count and -len(data) <= use.axis < len(data):
            size = data[use.axis]
            return [size // count] * (count - 1) + [size - size // count * (count - 1)]
    return None


def _axes(use: ValueUse, count: int, data: tuple[int, ...] | None) -> Sequence[int] | None:
    """Return `count` elements that the operator reads as axes, or as indices along them; None as for `_sizes`."""
    match use.operator, use.position:
        case "Slice", 1:
            return [0] * count
        case "Slice", 2:
            return [_END_OF_ANY_AXIS] * count
        case ("Slice", 3) | ("Unsqueeze", _):
            return range(count)
        case "Squeeze", _:
            axes = [axis for axis, size in enumerate(data or ()) if size == 1][:count]
            return axes if len(axes) == count else None
        case operator, _ if operator.startswith("Reduce"):
            return range(count)
    return None


def _target(declared: tuple[int, ...] | None, count: int) -> list[int]:
    """Return a shape of `count` dimensions for Reshape: as declared, else all elements along the first one."""
    if declared is None or len(declared) != count:
        return [-1, *[1] * (count - 1)][:count]
    free = [axis for axis, size in enumerate(declared) if size < 0]
    return [-1 if axis in free[:1] else max(1, size) for axis, size in enumerate(declared)]
