"""Texts that follow one another in one row of tokens, and the row that a thread computes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of all texts of a run, on the device. `values`: int32 [ids, positions and types, tokens]. `starts`:
    int32 [texts + 1]. `longest`: the most tokens of a text. `noted`: where compiled layers append the states
    before the first and after the last of them, unless they read angles too; None where they do not.
    """

    values: torch.Tensor
    starts: torch.Tensor
    longest: int
    noted: list[tuple[torch.Tensor, torch.Tensor]] | None = None


class _Thread(threading.local):
    row: TokenRow | None = None


_THREAD = _Thread()


@contextmanager
def computing(row: TokenRow) -> Iterator[None]:
    """Let the layers of this thread compute a row of tokens."""
    _THREAD.row = row
    try:
        yield
    finally:
        _THREAD.row = None


def row_of_thread() -> TokenRow | None:
    """Return the row of tokens that the layers of this thread compute; None outside such a run."""
    return _THREAD.row
