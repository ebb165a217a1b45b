"""Whether rows of different callers may share a run of a graph: its shapes must allow it and a trial must show it."""

import numpy as np

from frameworks.errors import RoundhouseError
from frameworks.onnx.trials import Run, Tolerance, is_same, random_row, tolerance_of, trial_inputs
from frameworks.types import ModelSpec, TensorType, Value


def why_not_batched(spec: ModelSpec, shapes: dict[str, tuple[int, ...]], run: Run) -> str | None:
    """None if a batch of two rows gives what two runs of one row give; else why batching is off.

    `shapes`: a shape that the graph runs with, for each of its `trial_inputs`. `run` runs it on all its outputs.
    """
    given = trial_inputs(spec)
    for declared in given:
        if not isinstance(declared.type, TensorType) or not declared.shape or declared.shape[0] != -1:
            return f'input "{declared.name}" has no free first dimension'
    for declared in spec.outputs:
        if isinstance(declared.type, TensorType) and (not declared.shape or declared.shape[0] != -1):
            return f'output "{declared.name}" has no free first dimension'
    if not given:
        return "it takes no input"
    random = np.random.default_rng(0)
    one, two = ({d.name: random_row(d, shapes[d.name], random) for d in given} for _ in range(2))
    try:
        apart = [run(dict(rows)) for rows in (one, two)]
        together = run({name: np.concatenate([one[name], two[name]]) for name in one})
    except RoundhouseError as error:
        return f"a trial with two rows failed: {error.message}"
    for name, value in together.items():
        if not _is_both(value, apart[0][name], apart[1][name], tolerance_of(spec, name)):
            return f'output "{name}" of two rows differs from that of each by itself'
    return None


def _is_both(together: Value, first: Value, second: Value, tolerance: Tolerance) -> bool:
    """Whether a batch's output is the rows of the two single ones, one after the other."""
    if isinstance(together, np.ndarray) and isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        if together.ndim == 0 or first.ndim == 0 or (len(together), len(first), len(second)) != (2, 1, 1):
            return False
        return first.shape[1:] == second.shape[1:] and is_same(together, np.concatenate([first, second]), tolerance)
    if isinstance(together, list) and isinstance(first, list) and isinstance(second, list):
        return (len(first), len(second)) == (1, 1) and is_same(together, first + second, tolerance)
    return False
