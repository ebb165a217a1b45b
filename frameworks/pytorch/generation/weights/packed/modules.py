"""Modules of transformers' models whose weights stay as their file holds them."""

import operator
from collections.abc import Callable

import torch

from frameworks.core.progress import step
from frameworks.pytorch.generation.weights.group_linear import ReadGroups, make_group_linear
from frameworks.pytorch.generation.weights.group_weights import GroupWeights
from frameworks.pytorch.generation.weights.linear import Linear, MakeLinear, UnfusedLinear
from frameworks.pytorch.generation.weights.packed.weight import (
    PackedWeight,
    dense,
    dense_rows,
    join_groups,
    pieces,
    read_groups,
)

MakeGroup = Callable[[ReadGroups, torch.Tensor | None], Linear]
"""A function that reads weights in groups, and a bias → the layer."""
LARGEST_DENSE_TABLE = 64 << 20
"""Bytes of an embedding table up to which it is dequantized at load."""


class PackedModule(torch.nn.Module):
    """Replaces a torch.nn.Linear. By itself it dequantizes the weights piece by piece to the dtype of its input: slow,
    and a reference for the layers that `linear_of` makes of it.
    """

    bias: torch.Tensor | None

    def __init__(self, packed: PackedWeight, bias: torch.Tensor | None, device: torch.device) -> None:
        """`bias`: [outputs]."""
        super().__init__()
        self.packed = packed
        self.in_features, self.out_features = packed.inputs, packed.outputs
        self.register_buffer("bias", bias, persistent=False)
        self.device = device
        self._linear: Linear | None = None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        rows = states.reshape(-1, self.in_features)
        if self._linear is not None:
            return self._linear(rows).view(*states.shape[:-1], self.out_features)
        made = rows.new_empty(len(rows), self.out_features)
        for piece in pieces(self.packed):
            weight = dense_rows(self.packed, piece, rows.dtype).to(rows.device)
            made[:, piece] = torch.nn.functional.linear(rows, weight)
        if self.bias is not None:
            made += self.bias
        return made.view(*states.shape[:-1], self.out_features)

    def make_fast(self) -> None:
        """Compute with the layer for this device from now on."""
        self._linear = _group_linear([self], _make_now)

    def groups(self) -> GroupWeights:
        """Return the weights on the device of the module."""
        found = read_groups(self.packed)
        shift = None if found.shift is None else found.shift.to(self.device)
        return GroupWeights(found.values.to(self.device), found.scale.to(self.device), shift, found.bits, found.group)

    def joins(self, other: "PackedModule") -> bool:
        """Whether one matmul can compute both: they have the same bits, groups and order of inputs."""
        mine, its = (module.packed.read(slice(0, 1)) for module in (self, other))
        kinds = [(each.bits, each.group, each.values.dtype) for each in (mine, its)]
        return kinds[0] == kinds[1] and _are_equal(self.packed.order, other.packed.order)


class PackedEmbedding(torch.nn.Module):
    """Replaces an embedding table: the rows of tokens are dequantized from the file's weights.

    A small table is dequantized at load instead: rows would take longer than the step of a small model.
    """

    def __init__(self, packed: PackedWeight, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.packed = packed
        self._dtype = dtype
        self._device = device
        self.num_embeddings, self.embedding_dim = packed.outputs, packed.inputs
        is_small = packed.outputs * packed.inputs * dtype.itemsize <= LARGEST_DENSE_TABLE
        self._table = dense(packed, dtype, device) if is_small else None

    @property
    def held_bytes(self) -> int:
        """Bytes of the table in memory; a large one stays in its file."""
        return self.packed.held_bytes if self._table is None else self._table.nbytes

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[…] → […, hidden size]."""
        if self._table is not None:
            return torch.nn.functional.embedding(token_ids, self._table)
        rows = dense_rows(self.packed, token_ids.reshape(-1).cpu(), self._dtype)
        return rows.to(self._device).view(*token_ids.shape, self.embedding_dim)


class JoinedLinear(UnfusedLinear):
    """Several linear layers of the same activations, their outputs side by side."""

    def __init__(self, linears: list[Linear]) -> None:
        self.linears = linears

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(rows) for linear in self.linears], 1)


class ReorderedLinear(UnfusedLinear):
    """A linear layer whose weights have their inputs in another order than the activations."""

    def __init__(self, linear: Linear, order: torch.Tensor) -> None:
        """`order`: the input of the activations for each column of the weights, int64 [inputs]."""
        self.linear = linear
        self.order = order

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows.index_select(1, self.order))


def linear_of(module: torch.nn.Module, make_linear: MakeLinear) -> Linear:
    """Return the layer that computes a Linear layer or a PackedModule."""
    return joined_linear_of([module], make_linear)


def joined_linear_of(modules: list[torch.nn.Module], make_linear: MakeLinear) -> Linear:
    """Return one layer for modules of the same activations: one matmul where their weights allow it.

    Counts the modules as steps of the current work.
    """
    packed = [module for module in modules if isinstance(module, PackedModule)]
    if not packed:
        step(len(modules))
        weights = [module.weight for module in modules]
        biases = [module.bias for module in modules if isinstance(module.bias, torch.Tensor)]
        assert all(isinstance(weight, torch.Tensor) for weight in weights)
        return make_linear(
            torch.cat(weights) if len(weights) > 1 else weights[0],  # type: ignore[arg-type]
            (torch.cat(biases) if len(biases) > 1 else biases[0]) if biases else None,
        )
    if len(packed) == len(modules) and all(packed[0].joins(other) for other in packed[1:]):
        step(len(modules))
        # A LinearMaker counts the bytes of all layers, and chooses kernels for the whole model.
        return _group_linear(packed, getattr(make_linear, "make_group", _make_now))
    return JoinedLinear([linear_of(module, make_linear) for module in modules])


def _group_linear(modules: list[PackedModule], make: MakeGroup) -> Linear:
    def read() -> GroupWeights:
        parts = [module.groups() for module in modules]
        return parts[0] if len(parts) == 1 else join_groups(parts)

    biases = [module.bias for module in modules if module.bias is not None]
    linear = make(read, torch.cat(biases) if biases else None)
    order = modules[0].packed.order
    return linear if order is None else ReorderedLinear(linear, order.to(modules[0].device))


def _make_now(read: ReadGroups, bias: torch.Tensor | None) -> Linear:
    return make_group_linear(read(), bias)


def replaced(linear: Linear, replace: Callable[[Linear], Linear]) -> Linear:
    """Return a layer with `replace` applied to each layer within it; itself if none changes."""
    if isinstance(linear, JoinedLinear):
        made = [replaced(each, replace) for each in linear.linears]
        return linear if all(map(operator.is_, made, linear.linears)) else JoinedLinear(made)
    if isinstance(linear, ReorderedLinear):
        inner = replaced(linear.linear, replace)
        return linear if inner is linear.linear else ReorderedLinear(inner, linear.order)
    return replace(linear)


def _are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
