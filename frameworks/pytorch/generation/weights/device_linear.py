"""Linear layers of weights in groups on a device with kernels: the weights keep their bits in its memory."""

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights, NibbleWeights
from frameworks.pytorch.generation.weights.linear import UnfusedLinear

DEVICE_KERNEL = "triton"
"""Name of the kernel in `GET /models`."""


class DeviceGroupLinear(UnfusedLinear):
    """int8, int4 or float8 weights, exactly as they are given. Activations keep their dtype."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None = None) -> None:
        """`weights`: those that `has_kernel`. `bias`: [outputs]."""
        # Importing it needs Triton.
        from frameworks.pytorch.device_kernels import group_matmul

        self._kernels = group_matmul
        self._values = NibbleWeights.of(weights).nibbles if weights.bits == 4 else weights.values
        if weights.is_float:
            self._values = weights.values.view(torch.uint8)
        self._scale, self._shift = _narrow(weights.scale), None if weights.shift is None else _narrow(weights.shift)
        self.bits, self._bias = weights.bits, bias

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights and their scales."""
        return sum(each.nbytes for each in (self._values, self._scale, self._shift) if each is not None)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) <= self._kernels.MAX_ROWS:
            return self._kernels.multiply(rows, self._values, self._scale, self._shift, self._bias, self.bits)
        weight = self._kernels.widened(self._values, self._scale, self._shift, self.bits, rows.dtype)
        return torch.nn.functional.linear(rows, weight, self._bias)


def has_kernel(weights: GroupWeights) -> bool:
    """Return whether DeviceGroupLinear computes these weights."""
    from frameworks.pytorch.device_kernels import group_matmul

    return group_matmul.fits(weights.inputs, weights.group, weights.bits)


def _narrow(scales: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in 16 bits where these hold them, else in float32."""
    wide = scales.float()
    narrow = wide.half()
    return narrow.contiguous() if torch.equal(narrow.float(), wide) else wide.contiguous()
