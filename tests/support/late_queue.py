"""A simulated device: what it is given runs as late as its marks allow, or at any time before."""

from collections import deque
from collections.abc import Callable
from random import Random

import torch

POISON = -7
"""In memory of the host into which a copy was given that has not run yet."""


class LateQueue:
    """A DeviceQueue of CPU tensors. A copy reads its source when it runs: what the host changed before shows."""

    def __init__(self, random: Random) -> None:
        """`random`: decides how much runs before it has to."""
        self._random = random
        self._given: deque[Callable[[], object]] = deque()
        self._num_run = 0
        self._hosts: set[int] = set()
        self.num_late = 0
        """Launches and copies that ran after a later call of the host."""

    def poisons(self, *hosts: torch.Tensor) -> None:
        """Let copies into these tensors of the host poison them until they have run."""
        self._hosts |= {each.untyped_storage().data_ptr() for each in hosts}

    def run(self, launch: Callable[[], object]) -> None:
        """As DeviceQueue.run."""
        self._give(launch)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As DeviceQueue.copy."""
        if target.untyped_storage().data_ptr() in self._hosts:
            target.fill_(POISON)
        self._give(lambda: target.copy_(source))

    def mark(self) -> "_Mark":
        """As DeviceQueue.mark."""
        return _Mark(self, self._num_run + len(self._given))

    def catch_up(self) -> None:
        """As DeviceQueue.catch_up."""
        self.run_until(self._num_run + len(self._given))

    def run_until(self, number: int) -> None:
        """Run all up to this launch or copy."""
        while self._num_run < number:
            self._num_run += 1
            with torch.inference_mode():
                self._given.popleft()()

    def _give(self, launch: Callable[[], object]) -> None:
        self._given.append(launch)
        early = self._random.choice([0, 0, 0, 1, len(self._given)])
        self.num_late += len(self._given) - early > 0
        self.run_until(self._num_run + min(early, len(self._given)))


class _Mark:
    def __init__(self, queue: LateQueue, number: int) -> None:
        self._queue = queue
        self._number = number

    def synchronize(self) -> None:
        self._queue.run_until(self._number)
