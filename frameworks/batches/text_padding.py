"""Find out by a trial whether padding changes the rows of texts; where it does, run texts of one length at a time."""

from collections.abc import Callable

import numpy as np

from frameworks.batches.comparison import is_close, text_tolerance
from frameworks.types import Array, ModelSpec, TokenBatch

TRIAL_TEXTS = ("warm up", "warm up , and warm up once more with a longer text that needs no padding")

Run = Callable[[TokenBatch], Array]


def try_text_padding(spec: ModelSpec, token_ids: list[list[int]], run: Run) -> str | None:
    """Return None if a padded text gets the same row as alone; else why only texts of one length share a run.

    `token_ids`: of two texts of different lengths. `run`: pads the texts of a batch and returns a row for each.
    Raises what `run` raises.
    """
    apart = np.concatenate([run(TokenBatch([ids])) for ids in token_ids])
    for order in ([0, 1], [1, 0]):
        together = run(TokenBatch([token_ids[i] for i in order]))
        for got, alone in zip(together, apart[order], strict=True):
            if not is_close(got, alone, text_tolerance(spec)):
                return "the row of a padded text differs from its single run"
    return None


def run_by_length(batch: TokenBatch, run: Run) -> Array:
    """Run the texts of each length in a run of their own; return all rows in the order of the batch."""
    lengths = np.fromiter(map(len, batch.token_ids), np.int64, batch.rows)
    groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    if len(groups) <= 1:
        return run(batch)
    rows = np.concatenate([run(_texts_at(batch, group)) for group in groups])
    ordered = np.empty_like(rows)
    ordered[np.concatenate(groups)] = rows
    return ordered


def _texts_at(batch: TokenBatch, positions: Array) -> TokenBatch:
    types = batch.token_type_ids
    at = positions.tolist()
    return TokenBatch([batch.token_ids[i] for i in at], None if types is None else [types[i] for i in at])
