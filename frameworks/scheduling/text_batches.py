"""How the texts of one request are cut into batches."""

from collections.abc import Sequence


def batches_by_length(lengths: Sequence[int], max_batch_size: int) -> list[list[int]]:
    """Positions of the texts, batch by batch, each of at most `max_batch_size`, longest texts first.

    Texts of like length stand together, so that little of a batch is padding; the longest go first, so that a batch
    that does not fit into memory is known before the work on the others is done.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    return [order[start : start + max_batch_size] for start in range(0, len(order), max_batch_size)]
