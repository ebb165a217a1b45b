"""Hold what all models that compute whole batches with torch share: threads, errors of the device, and its memory."""

from collections.abc import Callable

import torch

from frameworks.core.errors import ModelFailed
from frameworks.pytorch.device_errors import empty_cache, map_device_error
from frameworks.pytorch.openmp import release_threads
from frameworks.types import Value
from memory.tensor_pool import TensorPool


class DeviceModel:
    """A module of torch on one device. One thread at a time calls its methods."""

    def __init__(
        self, model: torch.nn.Module, device: torch.device, intra_op_threads: int, pool: TensorPool | None
    ) -> None:
        """`intra_op_threads`: CPU threads of one run. `pool`: of the pinned memory through which inputs reach a GPU."""
        self._model: torch.nn.Module | None = model
        self._device = device
        self._intra_op_threads = intra_op_threads
        self._pool = pool if device.type == "cuda" else None

    @property
    def module(self) -> torch.nn.Module | None:
        """The module that computes; None after `close`."""
        return self._model

    def on_idle(self) -> None:
        """As BatchModel.on_idle."""
        if self._device.type == "cpu":
            release_threads()

    def close(self) -> None:
        """As BatchModel.close."""
        self._model = None
        empty_cache(self._device)

    def _run_on_device(
        self, run: Callable[[torch.nn.Module], dict[str, Value]], describe: Callable[[], str]
    ) -> dict[str, Value]:
        """Return what `run` returns for the module. `describe`: names the work for an error.

        Raises ModelFailed for a closed model, and the errors of the device as OutOfMemory or ModelFailed.
        """
        if self._model is None:
            raise ModelFailed("the model is closed")
        if torch.get_num_threads() != self._intra_op_threads:
            # The number is a property of the calling thread, and every instance has a thread of its own.
            torch.set_num_threads(self._intra_op_threads)
        try:
            return run(self._model)
        except RuntimeError as error:
            ours = map_device_error(error, describe(), self._device)
            if ours is None:
                raise
        # The error is released here, and with it the frames that held the run's tensors. Their memory can be freed, and
        # the next run, half of this batch, finds it in one piece.
        empty_cache(self._device)
        raise ours
