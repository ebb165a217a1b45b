"""Graphs of a device that is not here: a replay computes again, and fails where a graph would read other memory."""

from collections.abc import Callable

import torch

from tests.support.step_recording import Launch, recording


class SimulatedGraphs:
    """A Graphs of CPU tensors. A replay has the launches of its capture, on tensors at the same addresses."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.captured: list[list[Launch]] = []
        """The launches of each graph."""
        self.num_replays = 0
        self.size_bytes = 0

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """As Graphs.capture."""
        compute()
        with recording(self._device) as recorded:
            result = compute()
        launches = recorded.launches
        self.captured.append(launches)

        def replay() -> torch.Tensor:
            self.num_replays += 1
            with torch.inference_mode(), recording(self._device) as again:
                other = compute()
            assert again.launches == launches, "a graph would launch something else"
            return result.copy_(other)

        return replay, result
