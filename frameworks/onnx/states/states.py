"""Read the states of a graph, and convert them between the layout of requests and that of the graph.

In requests the first axis of a state is that of the rows, so that the scheduler merges and splits states as it does
other tensors.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from frameworks.core.errors import InvalidModel, similar_names
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.states import StateEntry
from frameworks.onnx.states.pairing import find_pairs, fits
from frameworks.types import NUMPY_DTYPES, Array, StatePair, StateSpec, TensorType, Value, ValueSpec
from memory.sizes import format_size

DimensionNames = Mapping[str, Sequence[str | None]]
"""Input → the name of each dimension; None for one without a name, or with a size."""


class GraphStates:
    """The states of one graph."""

    def __init__(self, spec: StateSpec, first: dict[str, Array]) -> None:
        """`first`: by input, the state before the first step: one row in the layout of requests."""
        self.spec = spec
        self.first = first
        self.input_names = frozenset(pair.input for pair in spec.pairs)
        self.output_names = frozenset(pair.output for pair in spec.pairs)
        self._moved_inputs = [(pair.input, axis) for pair in spec.pairs if (axis := pair.batch_axis)]
        self._moved_outputs = [(pair.output, axis) for pair in spec.pairs if (axis := pair.batch_axis)]

    def first_of(self, rows: int) -> dict[str, Value]:
        """Return the states before the first step of so many rows."""
        values: dict[str, Value] = {}
        for pair in self.spec.pairs:
            one = self.first[pair.input]
            values[pair.input] = one if pair.batch_axis is None else np.repeat(one, rows, axis=0)
        return values

    def with_first(self, inputs: dict[str, Value]) -> dict[str, Value]:
        """Return the inputs of a first step with its states."""
        return inputs | self.first_of(self.spec.rows_of(inputs))

    def for_graph(self, inputs: dict[str, Value]) -> dict[str, Value]:
        """Return the inputs of a run with the states as the graph declares them."""
        moved = dict(inputs)
        for name, axis in self._moved_inputs:
            value = inputs.get(name)
            if isinstance(value, np.ndarray):
                moved[name] = np.ascontiguousarray(np.moveaxis(value, 0, axis))
        return moved

    def for_requests(self, outputs: dict[str, Value]) -> dict[str, Value]:
        """Return the outputs of a run with the rows of the states first."""
        for name, axis in self._moved_outputs:
            value = outputs.get(name)
            if isinstance(value, np.ndarray) and value.ndim > axis:
                outputs[name] = np.moveaxis(value, axis, 0)
        return outputs


def read_states(
    entry: OnnxModelEntry, path: Path, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec], names: DimensionNames
) -> GraphStates | None:
    """Return the states that the entry declares or has to find; None without `state`.

    Raises InvalidModel where the graph contradicts the entry, or where its states are not clear.
    """
    if entry.state is None:
        return None
    try:
        return _read(entry, inputs, outputs, names)
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error.message}", error.message) from None


def dimension_names(session: ort.InferenceSession) -> DimensionNames:
    """Return the names of the free dimensions of a session's inputs."""
    return {
        given.name: [size if isinstance(size, str) else None for size in given.shape] for given in session.get_inputs()
    }


def _read(
    entry: OnnxModelEntry, inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec], names: DimensionNames
) -> GraphStates:
    assert entry.state is not None
    given, returned = {each.name: each for each in inputs}, {each.name: each for each in outputs}
    if entry.state == "auto":
        declared = tuple(StateEntry(input=one, output=other) for one, other in find_pairs(inputs, outputs).items())
    else:
        declared = entry.state
    _check_names(declared, given, returned)
    public = [each for each in inputs if each.name not in {one.input for one in declared}]
    if not any(each.required for each in public):
        raise InvalidModel("state: expected a required input beside the states, got none; leave one of the pairs out")
    pairs, first = [], {}
    rows = _rows_of(declared, given, public, names)
    for each in declared:
        pair = _pair_of(each, given[each.input], returned[each.output], rows.name, names)
        pairs.append(pair)
        first[pair.input] = _first_row(each, pair)
    step_bytes = sum(value.nbytes for value in first.values())
    if step_bytes > entry.max_state_bytes:
        raise InvalidModel(
            f"max_state_bytes: expected at least {format_size(step_bytes)}, the states of one sequence, got "
            f"{format_size(entry.max_state_bytes)}; raise it"
        )
    spec = StateSpec(tuple(pairs), entry.max_state_bytes, entry.max_sequence_idle_s, rows.input, rows.axis)
    return GraphStates(spec, first)


def _check_names(
    declared: Sequence[StateEntry], inputs: Mapping[str, ValueSpec], outputs: Mapping[str, ValueSpec]
) -> None:
    for key, known in (("input", inputs), ("output", outputs)):
        seen: set[str] = set()
        for each in declared:
            name: str = getattr(each, key)
            if name not in known:
                near = similar_names(name, known, 1)
                hint = f'did you mean "{near[0]}"?' if near else f"the {key}s are {', '.join(known)}"
                raise InvalidModel(f'state.{key}: expected an {key} of the graph, got "{name[:128]}"; {hint}')
            if name in seen:
                raise InvalidModel(f'state.{key}: expected each {key} once, got "{name}" twice; remove one table')
            seen.add(name)


class _Rows(NamedTuple):
    """Where the rows of a step are: `name` of the dimension, and the input and axis that have it; None if unknown."""

    name: str | None = None
    input: str | None = None
    axis: int = 0


def _rows_of(
    declared: Sequence[StateEntry],
    given: Mapping[str, ValueSpec],
    public: Sequence[ValueSpec],
    names: DimensionNames,
) -> _Rows:
    """Find a named dimension that the states share with another input, its first one where there are several."""
    of_states = {name for each in declared for name in names.get(each.input, ()) if name is not None}
    found = [
        _Rows(name, each.name, axis)
        for each in public
        for axis, name in enumerate(names.get(each.name, ()))
        if name is not None and name in of_states
    ]
    first = next((each.name for each in public if each.shape), None)
    return min(found, key=lambda each: each.axis, default=_Rows(None, first))


def _pair_of(
    entry: StateEntry, given: ValueSpec, returned: ValueSpec, rows_name: str | None, names: DimensionNames
) -> StatePair:
    field = f"state.{given.name}"
    if not fits(given, returned):
        raise InvalidModel(
            f'{field}: expected an output of its dtype and shape, {_described(given)}, got "{returned.name}" with '
            f"{_described(returned)}; name another output"
        )
    assert isinstance(given.type, TensorType)
    declared = given.shape if given.shape is not None else entry.shape
    if declared is None:
        raise InvalidModel(f"{field}.shape: expected the shape of the first state, as the graph declares none; set it")
    shape = list(declared if entry.shape is None else entry.shape)
    if len(shape) != len(declared) or any(d not in (-1, s) for d, s in zip(declared, shape, strict=True)):
        raise InvalidModel(f"{field}.shape: expected {list(declared)} (-1 is free), got {shape}; make them agree")
    axis = entry.batch_axis
    free = [at for at, size in enumerate(shape) if size == -1]
    if axis is None and len(free) > 1 and rows_name is not None:
        named = [at for at in free if names[given.name][at] == rows_name]
        axis = named[0] if len(named) == 1 else None
    if axis is None and len(free) == 1:
        axis = free[0]
    if axis is not None and axis >= len(shape):
        raise InvalidModel(f"{field}.batch_axis: expected an axis of {shape}, got {axis}; correct it")
    if [at for at in free if at != axis]:
        raise InvalidModel(
            f"{field}.shape: expected a size for each free dimension but the rows, got {shape}; set shape, with -1 at "
            "the axis of the rows"
        )
    if axis is not None:
        if shape[axis] not in (-1, 1):
            raise InvalidModel(f"{field}.batch_axis: expected the axis of the rows, got {axis} of {shape}; correct it")
        axis = axis if shape[axis] == -1 else None
    return StatePair(given.name, returned.name, given.type.dtype, tuple(shape), axis)


def _first_row(entry: StateEntry, pair: StatePair) -> Array:
    """Return the state of one row before the first step, rows first."""
    field = f"state.{pair.input}.initial"
    shape = tuple(1 if size == -1 else size for size in pair.shape)
    try:
        value = np.array(entry.initial)
        target = NUMPY_DTYPES[pair.dtype]
        if value.dtype.kind not in "iufb" or (value.dtype.kind == "f" and target.kind != "f"):
            raise ValueError(f"{pair.dtype} cannot hold them")
        with np.errstate(over="raise"):
            whole = np.ascontiguousarray(np.broadcast_to(value.astype(target), shape))
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise InvalidModel(f"{field}: expected numbers of {pair.dtype} {list(shape)}, got others ({error})") from None
    return whole if pair.batch_axis is None else np.ascontiguousarray(np.moveaxis(whole, pair.batch_axis, 0))


def _described(spec: ValueSpec) -> str:
    return f"{spec.type} {'of any shape' if spec.shape is None else list(spec.shape)}"
