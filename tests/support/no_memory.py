"""A device whose memory ends: the operator of a number raises what torch raises there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises at the operator of this number which makes a tensor."""

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = number
        self.has_failed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(each.alias_info is not None for each in func._schema.returns)
        if not is_view and not self.has_failed:
            self._left -= 1
            if not self._left:
                self.has_failed = True
                raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **(kwargs or {}))


@contextmanager
def memory_ends_at(number: int) -> Iterator[NoMemory]:
    with NoMemory(number) as mode:
        yield mode
