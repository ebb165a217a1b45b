"""Record what a decoder asks of its device: operators of torch, launches of Triton's kernels, and reads by the host.

Tensors on torch's device `meta` have shapes and no numbers: what mixes devices or reads a value fails.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_HOST_READS = frozenset({"_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "masked_select"})
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


def _import_shapes() -> None:
    """Import the shapes of operators on the device `meta`, which lean_imports leaves out where it ran before."""
    name = "torch._meta_registrations"
    if hasattr(sys.modules.get(name), "activate_meta"):
        return
    sys.modules.pop(name, None)
    importlib.import_module(name)


_import_shapes()


class Launch(NamedTuple):
    """An operator of torch, or a kernel. `tensors`: shapes, and addresses of those that were there before the block."""

    name: str
    tensors: tuple[tuple[torch.Size, int], ...]


class Recording(TorchDispatchMode):
    """The launches of a block in their order. Raises AssertionError for a value that the host reads."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.launches: list[Launch] = []
        self._made: set[int] = set()

    @property
    def names(self) -> list[str]:
        """Return the names of the launches."""
        return [each.name for each in self.launches]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in _HOST_READS, f"the host reads the device: {name}"
        tensors = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, torch.Tensor)]
        # Numbers of Python are tensors without dimensions.
        devices = {each.device for each in tensors if each.ndim}
        assert devices <= {self._device}, f"{name} has tensors on {devices}"
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            assert result.device == self._device, f"{name} leaves the device"
            if not any(each.untyped_storage()._cdata == result.untyped_storage()._cdata for each in tensors):
                self._made.add(result.untyped_storage().data_ptr())
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
        if not is_view and name not in _ALLOCATIONS:
            self._add(name, tensors)
        return result

    def launch(self, name: str, arguments: dict[str, Any]) -> None:
        """Record a kernel. Its tensors are on one device."""
        tensors = [each for each in arguments.values() if isinstance(each, torch.Tensor)]
        devices = {each.device for each in tensors}
        assert devices == {self._device}, f"{name} has tensors on {devices}"
        self._add(name, tensors)

    def _add(self, name: str, tensors: list[torch.Tensor]) -> None:
        found = []
        for each in tensors:
            is_made = each.untyped_storage().data_ptr() in self._made
            found.append((each.shape, 0 if is_made else each.data_ptr()))
        self.launches.append(Launch(name, tuple(found)))


@contextmanager
def recording(device: torch.device, *, runs_kernels: bool = True) -> Iterator[Recording]:
    """Record what runs on a device within the block. `runs_kernels`: else they are recorded only."""
    from triton.runtime import interpreter

    recorded = Recording(device)
    run = interpreter.GridExecutor.__call__

    def recorded_run(self: Any, *args: Any, **options: Any) -> None:
        recorded.launch(self.fn.__name__, dict(zip(self.arg_names, args, strict=False)))
        if runs_kernels:
            with _disable_current_modes():
                run(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch, recorded:
        patch.setattr(interpreter.GridExecutor, "__call__", recorded_run)
        yield recorded
