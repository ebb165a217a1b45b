"""Weights of 8 or 4 bits with a scale for each group of inputs, whatever file or rounding they come from."""

from dataclasses import dataclass

import torch

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """Weights: each is its whole number times the scale of its group, plus the shift of its group.

    `values`: int8 [outputs, inputs], from -8 to 7 for 4 bits and from -128 to 127 for 8. `scale`: floats [outputs,
    inputs // group]. `shift`: the same shape, None for 0. `group`: neighbouring inputs of an output that share a
    scale; a divisor of the inputs. Numbers from 0 to 15 with a zero point z have values of 8 less, and the shift
    (8 - z) * scale; with a minimum m to be subtracted, the shift is 8 * scale - m.
    """

    values: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor | None
    bits: int
    group: int

    def __post_init__(self) -> None:
        """Raises ValueError where shapes or dtypes do not fit each other."""
        outputs, inputs = self.values.shape
        if self.bits not in (4, 8) or self.values.dtype != torch.int8:
            raise ValueError(f"bits: expected int8 values of 4 or 8 bits, got {self.values.dtype} of {self.bits}")
        expected = (outputs, inputs // self.group)
        shapes = [each.shape for each in (self.scale, self.shift) if each is not None]
        if inputs % self.group or any(tuple(shape) != expected for shape in shapes):
            raise ValueError(f"scale: expected {list(expected)} for groups of {self.group} in {inputs} inputs")

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    def dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the weights as numbers [outputs, inputs]."""
        groups = self.values.reshape(self.outputs, -1, self.group).float() * self.scale.float()[..., None]
        if self.shift is not None:
            groups += self.shift.float()[..., None]
        return groups.reshape(self.outputs, self.inputs).to(dtype)


def round_to_groups(weight: torch.Tensor, bits: int, group: int) -> GroupWeights:
    """Round weights [outputs, inputs] of any float type: each group by its own largest number.

    8 bits are symmetric. The 16 steps of 4 bits lie between the least and the largest number of a group.
    """
    outputs, inputs = weight.shape
    groups = weight.detach().float().reshape(outputs, inputs // group, group)
    if bits == 8:
        scale = (groups.abs().amax(2) / 127).clamp_(min=_TINY)
        values = torch.round(groups / scale[..., None])
        return GroupWeights(values.to(torch.int8).reshape(outputs, inputs), scale, None, bits, group)
    least, largest = groups.amin(2), groups.amax(2)
    scale = ((largest - least) / 15).clamp_(min=_TINY)
    values = torch.round((groups - least[..., None]) / scale[..., None]).clamp_(0, 15) - 8
    return GroupWeights(values.to(torch.int8).reshape(outputs, inputs), scale, least + 8 * scale, bits, group)
