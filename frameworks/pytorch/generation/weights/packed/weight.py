"""A quantized weight of a file, which is dequantized in pieces, never as a whole."""

from collections.abc import Iterator
from typing import Protocol

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights

Selection = slice | torch.Tensor
"""Outputs of a weight: a range, or int64 indices."""
# A piece in float32 takes 1 MiB: larger ones leave the cache of a core, and take two to four times as long.
_PIECE_ELEMENTS = 1 << 18


class PackedWeight(Protocol):
    """A weight [outputs, inputs] as its file holds it."""

    @property
    def outputs(self) -> int: ...

    @property
    def inputs(self) -> int: ...

    @property
    def bits(self) -> int:
        """Bits of a weight in memory, 4 or 8."""
        ...

    @property
    def is_float(self) -> bool:
        """Whether the values are float8, for which a CPU has no kernels."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of the layer made of it: its values, and a scale and a shift of 4 bytes for each group."""
        ...

    @property
    def order(self) -> torch.Tensor | None:
        """The input of each column of `read`, int64 [inputs]; None: in order."""
        ...

    def read(self, selection: Selection) -> GroupWeights:
        """Return the weights of some outputs."""
        ...


def pieces(weight: PackedWeight) -> Iterator[slice]:
    """Return ranges of outputs that together are all of them."""
    step = max(1, _PIECE_ELEMENTS // max(1, weight.inputs))
    return (slice(start, min(start + step, weight.outputs)) for start in range(0, weight.outputs, step))


def read_groups(weight: PackedWeight) -> GroupWeights:
    """Return the whole weight. Intermediate results of the reading are of one piece at a time."""
    parts = [weight.read(piece) for piece in pieces(weight)]
    if len(parts) == 1:
        return parts[0]
    return join_groups(parts)


def join_groups(parts: list[GroupWeights]) -> GroupWeights:
    """Join weights of the same inputs, bits and groups: the outputs of all, in order."""
    shifts = [torch.zeros_like(part.scale) if part.shift is None else part.shift for part in parts]
    return GroupWeights(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scale for part in parts]),
        None if all(part.shift is None for part in parts) else torch.cat(shifts),
        parts[0].bits,
        parts[0].group,
    )


def dense_rows(weight: PackedWeight, selection: Selection, dtype: torch.dtype) -> torch.Tensor:
    """Return the dequantized weights of some outputs [selected, inputs], the inputs in order."""
    found = weight.read(selection).dense(torch.float32)
    if weight.order is not None:
        found = torch.empty_like(found).index_copy_(1, weight.order, found)
    return found.to(dtype)


def dense(weight: PackedWeight, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the dequantized weight [outputs, inputs] on a device."""
    made = torch.empty(weight.outputs, weight.inputs, dtype=dtype, device=device)
    for piece in pieces(weight):
        made[piece] = dense_rows(weight, piece, dtype).to(device)
    return made


class WeightSource(Protocol):
    """Weights of a language model by the names of its parameters in transformers."""

    @property
    def name(self) -> str:
        """The file or folder, for errors."""
        ...

    def packed(self, parameter: str) -> PackedWeight | None:
        """Return a weight that the file holds as int8, int4 or float8; None for others.

        Raises InvalidModel if it is damaged.
        """
        ...

    def plain(self, parameter: str) -> torch.Tensor | None:
        """Return a weight that the file holds as floats, in its shape and the dtype of the file; None for others."""
        ...

    def bind(self, model: torch.nn.Module) -> None:
        """Learn the names of a model's parameters. Called before the first is read."""
        ...

    def adjust(self, model: torch.nn.Module) -> None:
        """Change buffers of a model that no parameter describes. Called after the parameters have their values."""
        ...
