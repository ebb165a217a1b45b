"""Linear layers with LoRA: the matmul of the base for all rows, and small matmuls A, B for rows with an adapter.

The adapters of a layer with equal ranks are a stack. A step multiplies the rows of several adapters of a stack in one
batched matmul. The grouped matmuls follow S-LoRA (Sheng et al., MLSys 2024).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from frameworks.pytorch.generation.decoders.adapters.batches import Batch, Run, batches_of
from frameworks.pytorch.generation.decoders.decoder import AdaptableLayer
from frameworks.pytorch.generation.weights.linear import Linear
from frameworks.pytorch.openmp import single_threaded_mkl

# Larger matmuls are split over threads. One core computes this many multiplications in 0.1 ms. The threads of a smaller
# matmul wait longer for each other while another thread or process has one of the cores.
_MAX_SINGLE_THREADED = 1 << 20


class Pair(NamedTuple):
    """The two matrices of one module: `a` [inputs, rank], `b` [rank, outputs] times the scale."""

    a: torch.Tensor
    b: torch.Tensor


class _Module(NamedTuple):
    """A module of a stack. `first_column`, `rank`: its columns of A. `first_output`, `outputs`: of the layer.
    `b`: [adapters, rank, outputs].
    """

    name: str
    first_column: int
    rank: int
    first_output: int
    outputs: int
    b: torch.Tensor


class Stack:
    """Adapters of one layer whose modules have equal ranks. `adapter_ids`: in the order of the stack."""

    def __init__(self, layer: AdaptableLayer, adapters: Mapping[int, Mapping[str, Pair]]) -> None:
        """`adapters`: by id, each with the pairs of its modules. Copies them."""
        self.adapter_ids = tuple(adapters)
        self._modules: list[_Module] = []
        a: list[torch.Tensor] = []
        column = output = 0
        for name, outputs in layer.modules:
            pairs = [each[name] for each in adapters.values() if name in each]
            if pairs:
                a.append(torch.stack([pair.a for pair in pairs]))
                b = torch.stack([pair.b for pair in pairs])
                self._modules.append(_Module(name, column, b.shape[1], output, outputs, b))
                column += b.shape[1]
            output += outputs
        # [adapters, inputs, columns]
        self._a = a[0] if len(a) == 1 else torch.cat(a, 2)
        self._is_whole_layer = len(layer.modules) == 1
        # Multiplications of a row in its largest matmul.
        self._row_multiplications = max(layer.inputs * column, *(each.rank * each.outputs for each in self._modules))

    def pairs_of(self, adapter_id: int) -> dict[str, Pair]:
        """Return the pairs of an adapter by module, as views."""
        index = self.adapter_ids.index(adapter_id)
        return {
            each.name: Pair(self._a[index].narrow(1, each.first_column, each.rank), each.b[index])
            for each in self._modules
        }

    def add_to(self, product: torch.Tensor, rows: torch.Tensor, batch: Batch) -> None:
        """Add x·A·B of the batch's adapters to its rows. `product`: [rows, outputs]. `rows`: x, [rows, inputs]."""
        if rows.device.type == "cpu" and batch.num_rows * self._row_multiplications <= _MAX_SINGLE_THREADED:
            with single_threaded_mkl():
                self._add_to(product, rows, batch)
        else:
            self._add_to(product, rows, batch)

    def _add_to(self, product: torch.Tensor, rows: torch.Tensor, batch: Batch) -> None:
        target = _part(product, batch.start, batch.num_rows)
        if batch.adapters == 1:
            hidden = torch.mm(_part(rows, batch.start, batch.num_rows), self._a[batch.first])
            for each in self._modules:
                self._outputs_of(target, each).addmm_(self._columns_of(hidden, each), each.b[batch.first])
            return
        own = _part(rows, batch.start, batch.num_rows) if batch.gather is None else rows.index_select(0, batch.gather)
        hidden = torch.bmm(own.view(batch.adapters, -1, own.shape[-1]), _part(self._a, batch.first, batch.adapters))
        for each in self._modules:
            b = _part(each.b, batch.first, batch.adapters)
            if batch.gather is None and self._is_whole_layer:
                target.view(batch.adapters, -1, each.outputs).baddbmm_(hidden, b)
                continue
            # In place, torch would make one call for each adapter where it writes parts of rows.
            added = torch.bmm(self._columns_of(hidden, each), b).view(-1, each.outputs)
            if batch.scatter is not None:
                added = added.index_select(0, batch.scatter)
            self._outputs_of(target, each).add_(added)

    def _columns_of(self, hidden: torch.Tensor, module: _Module) -> torch.Tensor:
        return hidden if len(self._modules) == 1 else hidden.narrow(-1, module.first_column, module.rank)

    def _outputs_of(self, product: torch.Tensor, module: _Module) -> torch.Tensor:
        return product if self._is_whole_layer else product.narrow(1, module.first_output, module.outputs)


def _part(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return a part along the first dimension; the tensor itself, without a call of torch, if that is all of it."""
    return tensor if count == len(tensor) else tensor.narrow(0, first, count)


def stacks_of(layer: AdaptableLayer, adapters: Mapping[int, Mapping[str, Pair]]) -> list[Stack]:
    """Return the stacks of a layer; none without an adapter. `adapters`: by ascending id."""
    by_ranks: dict[tuple[int, ...], dict[int, Mapping[str, Pair]]] = {}
    for adapter_id, pairs in adapters.items():
        ranks = tuple(len(pairs[name].b) if name in pairs else 0 for name, _ in layer.modules)
        if any(ranks):
            by_ranks.setdefault(ranks, {})[adapter_id] = pairs
    return [Stack(layer, members) for members in by_ranks.values()]


class StepAdapters:
    """The matmuls of one step's rows with the adapters. Used by one thread."""

    def __init__(
        self, stacks: Sequence[Sequence[Stack]], runs: Sequence[Run], selected: Sequence[Run], device: torch.device
    ) -> None:
        """`stacks`: of each layer. `runs`: of all rows. `selected`: of those in StepLayout.selected_rows."""
        self._stacks = stacks
        self._runs = runs, selected
        self._device = device
        self._batches: dict[tuple[bool, tuple[int, ...]], list[Batch]] = {}

    def has(self, layer: int) -> bool:
        """Whether an adapter of the model has the layer."""
        return bool(self._stacks[layer])

    def add_to(self, product: torch.Tensor, rows: torch.Tensor, layer: int, is_selected: bool) -> None:
        """Add x·A·B of a layer's adapters. `product`: [rows, outputs]. `rows`: x, [rows, inputs]."""
        for stack in self._stacks[layer]:
            for batch in self._batches_of(stack.adapter_ids, is_selected):
                stack.add_to(product, rows, batch)

    def _batches_of(self, adapter_ids: tuple[int, ...], is_selected: bool) -> list[Batch]:
        key = (is_selected, adapter_ids)
        batches = self._batches.get(key)
        if batches is None:
            batches = self._batches[key] = batches_of(self._runs[is_selected], adapter_ids, self._device)
        return batches


class AdaptedLinear:
    """A Linear with adapters. Without an adapter in the step it is the layer of the base."""

    def __init__(
        self, base: Linear, index: int, is_selected: bool, adapters: Callable[[], StepAdapters | None]
    ) -> None:
        """`index`: of the layer. `adapters`: of the step that is computed; None without any."""
        self.base = base
        self._index = index
        self._is_selected = is_selected
        self._adapters = adapters

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = self.base(rows)
        self._adapt(product, rows)
        return product

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_silu, [rows, outputs]."""
        if self._adapting() is None:
            return self.base.fused_silu(rows)
        return torch.nn.functional.silu(self(rows), inplace=True)

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_mul, [rows, outputs]."""
        return self.base.fused_mul(rows, factor) if self._adapting() is None else self(rows).mul_(factor)

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_add, [rows, outputs]."""
        product = self.base.fused_add(rows, summand)
        self._adapt(product, rows)
        return product

    def _adapting(self) -> StepAdapters | None:
        adapters = self._adapters()
        return adapters if adapters is not None and adapters.has(self._index) else None

    def _adapt(self, product: torch.Tensor, rows: torch.Tensor) -> None:
        adapters = self._adapters()
        if adapters is not None:
            adapters.add_to(product, rows, self._index, self._is_selected)


def base_of(linear: Linear) -> Linear:
    """Return the layer of the base below the adapters, if there are any."""
    return linear.base if isinstance(linear, AdaptedLinear) else linear
