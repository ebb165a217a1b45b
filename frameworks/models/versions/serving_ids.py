"""Number the loads of this process."""

import itertools

_numbers = itertools.count(1)


def new_serving_id() -> int:
    """Return the number of another load, unique in this process."""
    return next(_numbers)
