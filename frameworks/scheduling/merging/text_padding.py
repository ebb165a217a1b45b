"""Find out by a trial whether padding changes the rows of texts; where it does, run texts of one length at a time."""

from collections.abc import Callable

import numpy as np

from frameworks.scheduling.merging.comparison import Tolerance, is_close
from frameworks.types import Array, TokenBatch

TRIAL_TEXTS = ("warm up", "warm up , and warm up once more with a longer text that needs no padding")

Run = Callable[[TokenBatch], Array]


class TextPadding:
    """The padding of a model's texts, and one trial of it for all instances, which compute the same rows."""

    def __init__(self, pad_token_id: int | None) -> None:
        """`pad_token_id`: None where each text runs alone."""
        self.pad_token_id = pad_token_id
        self._is_tried = False
        self._reason: str | None = None

    def reason_not_shared(self, token_ids: list[list[int]], run: Run, tolerance: Tolerance) -> str | None:
        """Return the finding of the first call, as `try_text_padding`."""
        if not self._is_tried:
            self._reason = try_text_padding(token_ids, run, tolerance)
            self._is_tried = True
        return self._reason


def try_text_padding(token_ids: list[list[int]], run: Run, tolerance: Tolerance) -> str | None:
    """Return None if a padded text gets the same row as alone; else why only texts of one length share a run.

    `token_ids`: of two texts of different lengths. `run`: pads the texts of a batch and returns a row for each.
    `tolerance`: how far two rows of one text may be off. Raises what `run` raises.
    """
    # The longer text first: a model that pads or masks all rows as the first one, or as the last, changes a row.
    ordered = sorted(token_ids, key=len, reverse=True)
    together = run(TokenBatch(ordered))
    for ids, got in zip(ordered, together, strict=True):
        if not is_close(got, run(TokenBatch([ids]))[0], tolerance):
            return "the row of a padded text differs from its single run"
    return None


def run_by_length(batch: TokenBatch, run: Run) -> Array:
    """Run the texts of each length in a run of their own; return all rows in the order of the batch."""
    lengths = np.fromiter(map(len, batch.token_ids), np.int64, batch.rows)
    groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    if len(groups) <= 1:
        return run(batch)
    rows = np.concatenate([run(texts_at(batch, group)) for group in groups])
    ordered = np.empty_like(rows)
    ordered[np.concatenate(groups)] = rows
    return ordered


def texts_at(batch: TokenBatch, positions: Array) -> TokenBatch:
    """Return the texts of a batch at some positions, in their order."""
    at = positions.tolist()
    return batch.map_rows(lambda each: [each[i] for i in at])
