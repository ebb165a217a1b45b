"""Steps are padded to few numbers of rows, and padding rows affect no text."""

import torch

from frameworks.pytorch.generation.weights.linear import padded_rows

CPU = torch.device("cpu")


def test_padded_rows_have_few_sizes() -> None:
    filled = [padded_rows(rows, CPU) for rows in range(1, 513)]
    assert all(rows <= each <= max(rows, rows * 9 / 8) for rows, each in enumerate(filled, 1))
    assert len(set(filled)) == 64
    assert filled == sorted(filled)
    # Decode-only batches are not padded.
    assert filled[:32] == list(range(1, 33))
    assert sum(filled) / sum(range(1, 513)) < 1.05


def test_gpu_rows_are_not_padded() -> None:
    assert [padded_rows(rows, torch.device("cuda")) for rows in (1, 33, 500)] == [1, 33, 500]
