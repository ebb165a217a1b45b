"""Root mean square norm (Zhang and Sennrich 2019), as Llama has it."""

import torch


class RootMeanSquareNorm:
    """x / √(mean(x²) + ε) · weight over the last dimension, computed in float32, in the dtype of x.

    On the CPU torch makes seven passes of it. With the length of x it is four: mean(x²) + ε is (|x|² + nε) / n, and the
    root of that sum is a hypotenuse.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        """`weight`: [n]."""
        size = len(weight)
        self._weight = weight
        self._epsilon = epsilon
        self._times_root = weight.float() * size**0.5
        self._floor = torch.tensor((size * epsilon) ** 0.5, device=weight.device)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[…, n] → the same."""
        if states.device.type != "cpu":
            return torch.nn.functional.rms_norm(states, self._weight.shape, self._weight, self._epsilon)
        wide = states.float()
        lengths = torch.linalg.vector_norm(wide, 2, -1, True)
        return (wide / torch.hypot(lengths, self._floor)).mul_(self._times_root).to(states.dtype)
