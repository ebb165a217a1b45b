"""int8, int4 and float8 weights with a scale for each group of inputs, from any file or quantization."""

from dataclasses import dataclass

import torch

from frameworks.quantization.ranges import LARGEST_INT8

_TINY = 1e-12
# Pieces of the weights stay in the CPU's cache while they are quantized.
_ELEMENTS_AT_ONCE = 1 << 17
# Parts of a group's range, of which the one with the least error is taken.
_INT4_RANGES = (0.97, 0.85)


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """Quantized weights: each is its value times the scale of its group, plus the shift of its group.

    `values`: int8 [outputs, inputs], from -8 to 7 for 4 bits and from -128 to 127 for 8; or float8_e4m3fn. `scale`:
    floats [outputs, inputs // group]. `shift`: the same shape, None for 0. `group`: adjacent inputs of an output with
    one scale; a divisor of the inputs. Integers from 0 to 15 with a zero point z have values of 8 less, and the shift
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
        is_known = self.values.dtype == torch.int8 or (self.is_float and self.bits == 8)
        if self.bits not in (4, 8) or not is_known:
            raise ValueError(f"bits: expected int8 values of 4 or 8 bits, got {self.values.dtype} of {self.bits}")
        expected = (outputs, inputs // self.group)
        shapes = [each.shape for each in (self.scale, self.shift) if each is not None]
        if inputs % self.group or any(tuple(shape) != expected for shape in shapes):
            raise ValueError(f"scale: expected {list(expected)} for groups of {self.group} in {inputs} inputs")

    @property
    def is_float(self) -> bool:
        """Whether the values are float8."""
        return self.values.dtype == torch.float8_e4m3fn

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    def part(self, outputs: slice) -> "GroupWeights":
        """Return the weights of some outputs, as views."""
        shift = None if self.shift is None else self.shift[outputs]
        return GroupWeights(self.values[outputs], self.scale[outputs], shift, self.bits, self.group)

    def dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dequantized weights [outputs, inputs]."""
        values = self.values.float() if self.is_float else self.values
        groups = values.reshape(self.outputs, -1, self.group) * self.scale.float()[..., None]
        if self.shift is not None:
            groups += self.shift.float()[..., None]
        return groups.reshape(self.outputs, self.inputs).to(dtype)


@dataclass(frozen=True, slots=True)
class NibbleWeights:
    """GroupWeights of 4 bits in half of the memory. `nibbles`: uint8 [outputs, inputs // 2], each value with 8 more; a
    byte has a value of the first half of the inputs, and above it one of the second.
    """

    nibbles: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor | None
    group: int

    @classmethod
    def of(cls, weights: GroupWeights) -> "NibbleWeights":
        """Pack weights of 4 bits, of an even number of inputs."""
        first, second = weights.values.add(8).view(torch.uint8).chunk(2, 1)
        return cls(first | (second << 4), weights.scale, weights.shift, weights.group)

    @property
    def outputs(self) -> int:
        return self.nibbles.shape[0]

    @property
    def inputs(self) -> int:
        return 2 * self.nibbles.shape[1]

    def part(self, outputs: slice) -> "NibbleWeights":
        """Return the weights of some outputs, as views."""
        shift = None if self.shift is None else self.shift[outputs]
        return NibbleWeights(self.nibbles[outputs], self.scale[outputs], shift, self.group)

    def whole(self) -> GroupWeights:
        """Return the weights with a byte for each value."""
        values = torch.cat((self.nibbles & 15, self.nibbles >> 4), 1).view(torch.int8).sub_(8)
        return GroupWeights(values, self.scale, self.shift, 4, self.group)

    def dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """As GroupWeights.dense: [outputs, inputs]."""
        return self.whole().dense(dtype)


def held_bytes(elements: int, bits: int, group: int) -> int:
    """Return the bytes of values of so many bits, with a scale and a shift of 4 bytes for each group."""
    return elements * bits // 8 + elements // group * 8


def quantize_groups(weight: torch.Tensor, bits: int, group: int) -> GroupWeights:
    """Quantize weights [outputs, inputs] of any float dtype.

    int8 is symmetric: the scale of a group is its absolute maximum / 127. Of several ranges for the 16 steps of int4,
    each group has the one with the least squared error.
    """
    outputs, inputs = weight.shape
    at_once = max(1, _ELEMENTS_AT_ONCE // inputs)
    parts = [_quantized(part, bits, group) for part in torch.split(weight.detach(), at_once)]
    shift = None if parts[0].shift is None else torch.cat([part.shift for part in parts if part.shift is not None])
    values, scale = torch.cat([part.values for part in parts]), torch.cat([part.scale for part in parts])
    return GroupWeights(values.reshape(outputs, inputs), scale, shift, bits, group)


def _quantized(weight: torch.Tensor, bits: int, group: int) -> GroupWeights:
    groups = weight.float().reshape(len(weight), -1, group)
    if bits == 8:
        scale = (groups.abs().amax(2) / LARGEST_INT8).clamp_(min=_TINY)
        values = torch.round(groups / scale[..., None])
        return GroupWeights(values.to(torch.int8).reshape(weight.shape), scale, None, bits, group)
    # Sums over the first dimension are fast, those over a short last one are not.
    values, scale, shift = _nearest_int4(groups.reshape(-1, group).t().contiguous())
    shape = groups.shape[:2]
    signed = (values - 8).to(torch.int8).t().reshape(weight.shape)
    return GroupWeights(signed, scale.reshape(shape), shift.reshape(shape), bits, group)


def _nearest_int4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers from 0 to 15, [group, groups]; scales, and shifts for integers that are 8 less, [groups].

    For each range the weights are rounded, then scale and shift are fitted by least squares. `groups`: [group,
    groups].
    """
    least, largest = groups.amin(0), groups.amax(0)
    middle, mean = (least + largest) / 2, groups.mean(0)
    centred = groups - mean
    best_error = torch.full_like(mean, torch.inf)
    best_values, best_scale, best_shift = torch.zeros_like(groups), torch.ones_like(mean), torch.zeros_like(mean)
    for part in _INT4_RANGES:
        scale = ((largest - least) * (part / 15)).clamp_(min=_TINY)
        values = ((groups - middle) * scale.reciprocal()).add_(7.5).round_().clamp_(0, 15)
        mean_value = values.mean(0)
        spread = values - mean_value
        squares, products = (spread * spread).sum(0), (spread * centred).sum(0)
        fitted = torch.where(squares > 0, products / squares.clamp(min=_TINY), scale)
        # The sum of squared residuals of the fit.
        error = (centred - spread * fitted).square_().sum(0)
        is_better = error < best_error
        best_error = torch.where(is_better, error, best_error)
        best_values = torch.where(is_better, values, best_values)
        best_scale = torch.where(is_better, fitted, best_scale)
        best_shift = torch.where(is_better, mean - fitted * (mean_value - 8), best_shift)
    return best_values, best_scale, best_shift
