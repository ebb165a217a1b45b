"""Decide at warm-up whether rows of several requests may share a run: by the graph's shapes, and by a trial."""

from collections.abc import Callable

import numpy as np

from frameworks.batches.comparison import (
    Tolerance,
    is_close,
    random_row,
    reason_not_batchable,
    tolerance_of,
    trial_inputs,
)
from frameworks.types import ModelSpec, Value

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
    apart = [run(dict(rows)) for rows in (one, two)]
    together = run({name: np.concatenate([one[name], two[name]]) for name in one})
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
