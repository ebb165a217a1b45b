"""Steps are filled up to few numbers of rows, and what fills them is nobody's."""

import torch

from frameworks.pytorch.generation.linear import padded_rows

CPU = torch.device("cpu")


def test_few_numbers_of_rows_and_little_more_of_them() -> None:
    filled = [padded_rows(rows, CPU) for rows in range(1, 513)]
    assert all(rows <= each <= max(rows, rows * 9 / 8) for rows, each in enumerate(filled, 1))
    assert len(set(filled)) == 64
    assert filled == sorted(filled)
    # Batches of texts are computed as they are.
    assert filled[:32] == list(range(1, 33))
    assert sum(filled) / sum(range(1, 513)) < 1.05


def test_on_a_gpu_nothing_is_filled() -> None:
    assert [padded_rows(rows, torch.device("cuda")) for rows in (1, 33, 500)] == [1, 33, 500]
