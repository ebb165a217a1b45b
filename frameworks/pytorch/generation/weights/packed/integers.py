"""Unpack int4 and int8 weights from int32: the layouts of GPTQ, AWQ and compressed-tensors folders."""

from dataclasses import dataclass

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights, held_bytes
from frameworks.pytorch.generation.weights.packed.weight import Selection

# AutoAWQ's order of eight outputs in an int32, lowest bits first, inverted: the position of each output.
_AWQ_POSITIONS = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack_columns(packed: torch.Tensor, bits: int, columns: torch.Tensor | None = None) -> torch.Tensor:
    """Unpack integers along the last dimension, lowest bits first: int32 [rows, columns].

    `packed`: int32 [rows, int32 of a row]. `columns`: only these of each row, int64.
    """
    per_integer = 32 // bits
    mask = (1 << bits) - 1
    if columns is None:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        return ((packed[:, :, None] >> shifts) & mask).flatten(1)
    shifts = (columns % per_integer * bits).to(torch.int32)
    return (packed[:, columns // per_integer] >> shifts) & mask


def _indices(selection: Selection, count: int) -> torch.Tensor:
    return torch.arange(count)[selection] if isinstance(selection, slice) else selection


def _order_of_groups(group_of_input: torch.Tensor, group: int) -> torch.Tensor | None:
    """Return the inputs group by group, int64; None if they are already in this order.

    Raises ValueError where a group has another number of inputs.
    """
    if torch.equal(group_of_input, torch.arange(len(group_of_input), dtype=group_of_input.dtype) // group):
        return None
    counts = torch.bincount(group_of_input.long(), minlength=len(group_of_input) // group)
    if not bool((counts == group).all()):
        raise ValueError(f"the groups of g_idx have other sizes than {group}")
    return torch.argsort(group_of_input, stable=True)


class _Weight:
    """The common part of the layouts."""

    is_float = False

    def __init__(self, outputs: int, inputs: int, bits: int, group: int, order: torch.Tensor | None = None) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.bits, self.group = bits, group
        self.order = order
        self.held_bytes = held_bytes(outputs * inputs, bits, group)

    def _groups(self, integers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> GroupWeights:
        """Return (integer - zero) * scale. `integers`: [outputs, inputs], from 0. `zero`: None for the middle."""
        middle = 1 << (self.bits - 1)
        values = (integers - middle).to(torch.int8)
        if self.order is not None:
            values = values.index_select(1, self.order)
        scale = scale.float()
        shift = None if zero is None else (middle - zero) * scale
        return GroupWeights(values, scale.contiguous(), shift, self.bits, self.group)


@dataclass(frozen=True, slots=True)
class ColumnTensors:
    """The tensors of a layer in a GPTQ or AWQ folder. `zeros`: int32 [groups, outputs / values per int32];
    `scales`: [groups, outputs]; `group_of_input`: int32 [inputs], None where adjacent inputs form the groups.
    """

    weight: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    group_of_input: torch.Tensor | None = None


class GptqWeight(_Weight):
    """A PackedWeight. `weight`: int32 [inputs / values per int32, outputs]."""

    def __init__(self, tensors: ColumnTensors, bits: int, stored_zero_is_less: bool) -> None:
        """`stored_zero_is_less`: whether the zero points are 1 more than the file states, as in the first version.

        Raises ValueError where the shapes of the tensors do not fit each other.
        """
        per_integer = 32 // bits
        integers, outputs = tensors.weight.shape
        inputs = integers * per_integer
        groups = _num_groups(tensors, inputs, outputs, bits)
        order = None
        if tensors.group_of_input is not None:
            if tensors.group_of_input.shape != (inputs,):
                raise ValueError(f"expected g_idx [{inputs}], got {list(tensors.group_of_input.shape)}")
            order = _order_of_groups(tensors.group_of_input, inputs // groups)
        super().__init__(outputs, inputs, bits, inputs // groups, order)
        self._tensors = tensors
        self._more = int(stored_zero_is_less)
        self._has_zero = _has_other_zeros(unpack_columns(tensors.zeros, bits) + self._more, bits)

    def read(self, selection: Selection) -> GroupWeights:
        """As PackedWeight.read."""
        chosen = _indices(selection, self.outputs)
        integers = unpack_columns(self._tensors.weight[:, chosen].t(), self.bits)
        zeros = unpack_columns(self._tensors.zeros, self.bits, chosen).t() + self._more if self._has_zero else None
        return self._groups(integers, self._tensors.scales[:, chosen].t(), zeros)


class AwqWeight(_Weight):
    """A PackedWeight of AutoAWQ's `gemm` layout, 4 bits. `weight`: int32 [inputs, outputs / 8]."""

    def __init__(self, tensors: ColumnTensors) -> None:
        """Raises ValueError where the shapes of the tensors do not fit each other."""
        inputs, integers = tensors.weight.shape
        outputs = integers * 8
        groups = _num_groups(tensors, inputs, outputs, 4)
        super().__init__(outputs, inputs, 4, inputs // groups)
        self._tensors = tensors
        self._has_zero = _has_other_zeros(unpack_columns(tensors.zeros, 4), 4)

    def read(self, selection: Selection) -> GroupWeights:
        """As PackedWeight.read."""
        chosen = _indices(selection, self.outputs)
        columns = chosen // 8 * 8 + torch.tensor(_AWQ_POSITIONS)[chosen % 8]
        integers = unpack_columns(self._tensors.weight, 4, columns).t()
        zeros = unpack_columns(self._tensors.zeros, 4, columns).t() if self._has_zero else None
        return self._groups(integers, self._tensors.scales[:, chosen].t(), zeros)


class RowWeight(_Weight):
    """A PackedWeight of a compressed-tensors folder: each output has its own row, packed or int8."""

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor | None,
        group_of_input: torch.Tensor | None,
        shape: tuple[int, int],
        bits: int,
    ) -> None:
        """`weight`: int32 [outputs, integers], or int8 [outputs, inputs]. `scale`: [outputs, groups], one for each
        output or one for all. `zero`: of the same shape, int8, or int32 and packed along the outputs; None for 0.

        Raises ValueError where the shapes of the tensors do not fit each other.
        """
        outputs, inputs = shape
        scale = scale.reshape(-1, 1).expand(outputs, 1) if scale.numel() in (1, outputs) else scale
        if scale.ndim != 2 or len(scale) != outputs or inputs % scale.shape[1]:
            raise ValueError(f"expected weight_scale [{outputs}, groups] for {inputs} inputs, got {list(scale.shape)}")
        width = inputs if weight.dtype == torch.int8 else -(-inputs * bits // 32)
        if tuple(weight.shape) != (outputs, width):
            raise ValueError(f"expected weights [{outputs}, {width}], got {list(weight.shape)}")
        group = inputs // scale.shape[1]
        order = None
        if group_of_input is not None and bool((group_of_input >= 0).all()):
            order = _order_of_groups(group_of_input, group)
        super().__init__(outputs, inputs, bits, group, order)
        self._weight, self._scale = weight, scale
        self._zero = None if zero is None else self._signed_zero(zero)

    def read(self, selection: Selection) -> GroupWeights:
        """As PackedWeight.read."""
        middle = 1 << (self.bits - 1)
        rows = self._weight[selection]
        if rows.dtype == torch.int8:
            integers = rows.to(torch.int32) + middle
        else:
            integers = unpack_columns(rows, self.bits)[:, : self.inputs]
        zero = None if self._zero is None else self._zero[selection] + middle
        return self._groups(integers, self._scale[selection], zero)

    def _signed_zero(self, zero: torch.Tensor) -> torch.Tensor | None:
        """Return the zero points, int32 [outputs, groups]; None if all are 0."""
        if zero.dtype == torch.int32:
            zero = unpack_columns(zero.t(), self.bits).t()[: self.outputs] - (1 << (self.bits - 1))
        zero = zero.to(torch.int32)
        zero = zero.reshape(-1, 1).expand(self.outputs, 1) if zero.numel() in (1, self.outputs) else zero
        if zero.shape != self._scale.shape:
            raise ValueError(f"expected weight_zero_point {list(self._scale.shape)}, got {list(zero.shape)}")
        return zero if bool(zero.any()) else None


def _num_groups(tensors: ColumnTensors, inputs: int, outputs: int, bits: int) -> int:
    """Return the number of groups. Raises ValueError where the shapes do not fit each other."""
    groups = len(tensors.scales)
    if tensors.scales.shape != (groups, outputs) or not groups or inputs % groups:
        raise ValueError(f"expected scales [groups, {outputs}] for {inputs} inputs, got {list(tensors.scales.shape)}")
    if tensors.zeros.shape != (groups, outputs * bits // 32):
        raise ValueError(f"expected qzeros [{groups}, {outputs * bits // 32}], got {list(tensors.zeros.shape)}")
    return groups


def _has_other_zeros(zeros: torch.Tensor, bits: int) -> bool:
    return not bool((zeros == 1 << (bits - 1)).all())
