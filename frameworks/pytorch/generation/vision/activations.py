"""Measure the memory that a vision tower takes while it computes."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ActivationPeak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operators of this thread create, until they are released.

    The scratch buffers of an operator are not counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        """The most bytes at a time."""
        self._live_bytes = 0
        self._live: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # A view, and a result that is written into an argument, have the memory of the argument.
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if _has_storage(each)}
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if _has_storage(each):
                storage = each.untyped_storage()
                address = storage.data_ptr()
                if address not in given and address not in self._live:
                    self._add(storage, address)
        return result

    def _add(self, storage: Any, address: int) -> None:
        nbytes = storage.nbytes()
        self._live.add(address)
        self._live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._release, address, nbytes)

    def _release(self, address: int, nbytes: int) -> None:
        self._live.discard(address)
        self._live_bytes -= nbytes


def _has_storage(value: Any) -> bool:
    # Packed weights have none.
    return isinstance(value, torch.Tensor) and value.layout == torch.strided
