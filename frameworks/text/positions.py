"""Derive the longest text of a model from the rows of a table of positions that a short text reads."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from frameworks.text.tokenizer import TextTokenizer

# Fewer token ids may follow each other by chance.
_FEWEST_TOKENS = 3


def usable_positions(reads: Iterable[tuple[int, Sequence[int]]]) -> int | None:
    """Return the largest number of tokens of a text; None where no table of positions is read.

    `reads`: of tables, each with its number of rows and the rows that one text reads. A table of positions is read at
    consecutive rows. The first of these rows shows how many are never used: families differ in it.
    """
    usable = (
        num_rows - rows[0]
        for num_rows, rows in reads
        if rows and all(following == row + 1 for row, following in pairwise(rows))
    )
    return min(usable, default=None)


def position_trial_ids(tokenizer: TextTokenizer, texts: Iterable[str]) -> list[int] | None:
    """Return the token ids of the first text that has enough of them for the trial."""
    rows = (tokenizer.tokenize([text], truncate=True)[0] for text in texts)
    return next((ids for ids in rows if len(ids) >= _FEWEST_TOKENS), None)
