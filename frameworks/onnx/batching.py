"""Decide at warm-up whether rows of several requests may share a run, also rows of different lengths: by the graph, the
model's entry and trials."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidModel, RoundhouseError, similar_names
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.scheduling.merging.comparison import (
    Tolerance,
    find_sequence_axes,
    is_close,
    ordinary_pad_value,
    random_row,
    reason_not_batchable,
    tolerance_of,
    trial_inputs,
)
from frameworks.scheduling.merging.rows import merge, split_outputs, with_scalars
from frameworks.types import (
    NUMPY_DTYPES,
    Array,
    ModelSpec,
    SequenceSpec,
    TensorBatch,
    TensorType,
    Value,
    ValueSpec,
)

Run = Callable[[dict[str, Value]], dict[str, Value]]


def reason_not_batched(spec: ModelSpec, shapes: dict[str, tuple[int, ...]], run: Run) -> str | None:
    """Return None if a batch of two rows gives the same as two runs of one row; else why batching is off.

    `shapes`: a shape that the graph runs with, for each of its `trial_inputs`. `run`: runs it on all its outputs.
    Raises what the graph raises for synthetic rows.
    """
    if (because := reason_not_batchable(spec)) is not None:
        return because
    random = np.random.default_rng(0)
    one, two = ({d.name: random_row(d, shapes[d.name], random) for d in trial_inputs(spec)} for _ in range(2))
    return _reason_of_trial(spec, {}, one, two, run)


def reason_steps_not_batched(spec: ModelSpec, ran: dict[str, Value], run: Run) -> str | None:
    """As `reason_not_batched`, for steps of sequences. Scalars, which declare no shape, keep their values: steps with
    equal ones share a batch.

    `spec`: with the states. `ran`: the inputs of a step that the graph accepts.
    """
    if (because := reason_not_batchable(spec)) is not None:
        return because
    undeclared = [each.name for each in trial_inputs(spec) if not each.shape]
    ran = with_scalars(ran, undeclared)
    scalars = {name: ran[name] for name in undeclared}
    for name, value in scalars.items():
        if not isinstance(value, np.ndarray) or value.ndim:
            return f'input "{name}" has no free first dimension'
    random = np.random.default_rng(0)

    def row() -> dict[str, Array]:
        return {
            each.name: random_row(each, value.shape, random)
            for each in trial_inputs(spec)
            if each.name not in scalars and isinstance(value := ran[each.name], np.ndarray)
        }

    return _reason_of_trial(spec, scalars, row(), row(), run)


def _reason_of_trial(
    spec: ModelSpec, scalars: dict[str, Value], one: dict[str, Array], two: dict[str, Array], run: Run
) -> str | None:
    """Run two rows alone and together. `scalars`: the inputs that have no rows."""
    apart = [run({**rows, **scalars}) for rows in (one, two)]
    together = run({**{name: np.concatenate([one[name], two[name]]) for name in one}, **scalars})
    for name, value in together.items():
        if not _is_both(value, apart[0][name], apart[1][name], tolerance_of(spec, name)):
            return f'output "{name}" of two rows differs from its single runs'
    return None


def _is_both(together: Value, first: Value, second: Value, tolerance: Tolerance) -> bool:
    """Return whether a batch's output is the rows of the two single runs, in order."""
    if isinstance(together, np.ndarray) and isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        if together.ndim == 0 or first.ndim == 0 or (len(together), len(first), len(second)) != (2, 1, 1):
            return False
        return first.shape[1:] == second.shape[1:] and is_close(together, np.concatenate([first, second]), tolerance)
    if isinstance(together, list) and isinstance(first, list) and isinstance(second, list):
        return (len(first), len(second)) == (1, 1) and is_close(together, first + second, tolerance)
    return False


def read_sequence(entry: OnnxModelEntry, path: Path, inputs: Sequence[ValueSpec]) -> SequenceSpec | None:
    """Return the entry's sequence, untested, or None. Raises InvalidModel if the graph contradicts it."""
    axis = entry.sequence_axis
    if axis is None:
        return None
    by_name = {declared.name: declared for declared in inputs}
    pad_values = dict(entry.pad_values or ())
    for name in pad_values:
        _check_name(name, "pad_values", path, by_name)
    having = {name: declared for name, declared in by_name.items() if _has_axis(declared, axis)}
    if not any(declared.required and name != entry.mask_input for name, declared in having.items()):
        shapes = ", ".join(f'"{name}" {_shape(declared)}' for name, declared in by_name.items())
        raise InvalidModel(
            f"{path}: sequence_axis: expected a free dimension of a required input, got {axis}; the inputs are {shapes}"
        )
    for name in pad_values:
        if name not in having:
            raise InvalidModel(
                f'{path}: pad_values: expected inputs with the free dimension {axis}, got "{name}"; remove it'
            )
    mask = None if entry.mask_input is None else _read_mask(entry.mask_input, axis, path, by_name)
    if mask is not None and pad_values.get(mask.name):
        raise InvalidModel(
            f'{path}: pad_values: expected 0 for the mask_input "{mask.name}"; remove it from pad_values'
        )
    filled = {name: _pad_value(declared, pad_values.get(name, 0), path) for name, declared in having.items()}
    return SequenceSpec(axis, filled, mask)


def try_padding(spec: ModelSpec, shapes: dict[str, tuple[int, ...]], run: Run) -> SequenceSpec | None:
    """Return the model's sequence after a trial with two rows of different lengths. Single runs show which output axes
    are as long as the row; a padded batch shows whether each row gets the same result.

    `shapes` and `run` are as for `reason_not_batched`, whose result is already in the spec.
    """
    sequence = spec.sequence
    if sequence is None:
        return None
    if spec.unbatched_because is not None:
        return replace(sequence, unpadded_because="batching is off")
    long = max(shapes[d.name][sequence.axis] for d in trial_inputs(spec) if d.name in sequence.pad_values)
    lengths = [(long + 1) // 2, long] if long > 1 else [1, 2]
    padded = replace(sequence, unpadded_because=None)
    random = np.random.default_rng(0)
    # A maximum over the axis notices only padding above all real values, a minimum only padding below.
    for side in (0, -1, 1):
        rows = [TensorBatch(_row(spec, shapes, length, random, side)) for length in lengths]
        try:
            apart = [run(dict(row.inputs)) for row in rows]
        except RoundhouseError as error:
            if side:  # values that the graph refuses occur in no response
                continue
            return replace(sequence, unpadded_because=f"a trial with two lengths failed: {error.public}")
        if not side:
            padded = replace(padded, output_axes=find_sequence_axes(apart, lengths))
        because = _padding_failure(spec, padded, rows, lengths, apart, run)
        if because is not None:
            return replace(sequence, unpadded_because=because)
        lengths.reverse()
    return padded


def _padding_failure(
    spec: ModelSpec,
    padded: SequenceSpec,
    rows: list[TensorBatch],
    lengths: list[int],
    apart: list[dict[str, Value]],
    run: Run,
) -> str | None:
    together = merge(rows, padded)
    assert isinstance(together, TensorBatch)
    try:
        outputs = run(together.inputs)
    except RoundhouseError as error:
        return f"a trial with a padded row failed: {error.public}"
    for got, alone in zip(split_outputs(outputs, [1, 1], lengths, padded), apart, strict=True):
        for name, value in got.items():
            if not is_close(value, alone[name], tolerance_of(spec, name)):
                hint = "" if padded.mask else "; if the graph reads a mask, name it as mask_input"
                return f'output "{name}" of a padded row differs from its single run{hint}'
    return None


def _row(
    spec: ModelSpec, shapes: dict[str, tuple[int, ...]], length: int, random: np.random.Generator, side: int
) -> dict[str, Value]:
    """Return every input of a row of this length, with a mask of ones. `side` is as for `random_row`."""
    sequence = spec.sequence
    assert sequence is not None
    row: dict[str, Value] = {}
    for declared in trial_inputs(spec):
        shape = list(shapes[declared.name])
        pad_value = sequence.pad_values.get(declared.name)
        if pad_value is None:
            row[declared.name] = random_row(declared, tuple(shape), random)
            continue
        shape[sequence.axis] = length
        value = random_row(declared, tuple(shape), random, side, ordinary_pad_value(pad_value))
        if sequence.mask and declared.name == sequence.mask.name:
            value = np.ones_like(value)
        elif value.dtype.kind != "f" and not side:
            # A row that ends with the padding value would hide a difference.
            value[(slice(None),) * sequence.axis + (-1,)] = 0 if pad_value else 1
        row[declared.name] = value
    return row


def _has_axis(declared: ValueSpec, axis: int) -> bool:
    shape = declared.shape if isinstance(declared.type, TensorType) else None
    return shape is not None and len(shape) > axis and shape[axis] == -1


def _read_mask(name: str, axis: int, path: Path, inputs: Mapping[str, ValueSpec]) -> ValueSpec:
    _check_name(name, "mask_input", path, inputs)
    mask = inputs[name]
    if not _has_axis(mask, axis) or -1 in (mask.shape or ())[1:axis] + (mask.shape or ())[axis + 1 :]:
        raise InvalidModel(
            f"{path}: mask_input: expected an input whose only free dimensions are its rows and dimension {axis}, "
            f'got "{name}" of shape {_shape(mask)}'
        )
    return mask


def _pad_value(declared: ValueSpec, number: float, path: Path) -> float:
    assert isinstance(declared.type, TensorType)
    dtype = NUMPY_DTYPES[declared.type.dtype]
    if dtype.kind == "O":
        raise InvalidModel(
            f'{path}: sequence_axis: expected numbers to pad, got strings in "{declared.name}"; remove it'
        )
    if dtype.kind == "f":
        fits = abs(number) <= float(np.finfo(dtype).max)
    elif dtype.kind == "b":
        fits = number in (0, 1)
    else:
        fits = number == int(number) and np.iinfo(dtype).min <= number <= np.iinfo(dtype).max
    if not fits:
        raise InvalidModel(f'{path}: pad_values: expected {declared.type} numbers for "{declared.name}", got {number}')
    return number if dtype.kind == "f" else int(number)


def _check_name(name: str, key: str, path: Path, inputs: Mapping[str, ValueSpec]) -> None:
    if name not in inputs:
        near = similar_names(name, inputs, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"its inputs are {', '.join(inputs)}"
        raise InvalidModel(f'{path}: {key}: expected an input of the graph, got "{name}"; {hint}')


def _shape(declared: ValueSpec) -> str:
    return "undeclared" if declared.shape is None else str(list(declared.shape))
