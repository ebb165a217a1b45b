"""The collective operations of the ranks of one model: gloo between CPUs, NCCL between CUDA devices.

A group of torch.distributed of its own, not the process's global one: a process may have several models. Nothing is
reachable from other machines: the ranks find each other by a file, and connect over the loopback interface.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from frameworks.pytorch.generation.tensor_parallel.shard import Shard

CONNECT_S = 120.0
"""Limit of the connection of all ranks."""
COLLECTIVE_S = 60.0
"""Limit of one operation: a rank that hangs fails the others."""
_LOOPBACK = "127.0.0.1"


class RankGroup:
    """The group of one rank. Every rank calls the same operations in the same order. Used by one thread."""

    def __init__(self, shard: Shard, device: torch.device, file: Path) -> None:
        """Connect to all other ranks. `file`: does not exist, in a folder that all ranks read and write.

        Raises RuntimeError where they do not connect within CONNECT_S.
        """
        self.shard = shard
        self.is_broken = False
        """Whether an operation has failed: the ranks then compute different steps."""
        store = torch.distributed.FileStore(str(file), shard.size)
        store.set_timeout(timedelta(seconds=CONNECT_S))
        make = _nccl if device.type == "cuda" else _gloo
        self._group = self._checked(lambda: make(store, shard, device))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the ranks. Raises RuntimeError where a rank fails or hangs."""
        self._checked(lambda: self._group.allreduce([tensor]).wait())

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one shape. Raises RuntimeError where a rank fails or hangs."""
        tensor = tensor.contiguous()
        gathered = [torch.empty_like(tensor) for _ in range(self.shard.size)]
        self._checked(lambda: self._group.allgather([gathered], [tensor]).wait())
        return gathered

    def abort(self) -> None:
        """End operations that run on a device, after a rank has ended. Any thread."""
        self.is_broken = True
        if self._group.name() == "nccl":
            self._group.abort()

    def _checked(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except RuntimeError:
            self.is_broken = True
            raise


def _gloo(store: Any, shard: Shard, _: torch.device) -> Any:
    options = torch.distributed.ProcessGroupGloo._Options()
    options._devices = [torch.distributed.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    options._timeout = timedelta(seconds=COLLECTIVE_S)
    return torch.distributed.ProcessGroupGloo(store, shard.rank, shard.size, options)


def _nccl(store: Any, shard: Shard, device: torch.device) -> Any:
    if sys.platform == "linux":
        # It would listen on the interface of the network.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(device)
    options = torch.distributed.ProcessGroupNCCL.Options()
    # After it NCCL's watchdog ends the process, which is that of the model alone.
    options._timeout = timedelta(seconds=COLLECTIVE_S)
    return torch.distributed.ProcessGroupNCCL(store, shard.rank, shard.size, options)
