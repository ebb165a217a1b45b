"""Linear layers with adapters: the product of the base for all rows, and small products for rows with an adapter.

The adapters of a layer are stacked by their ranks. Rows of different adapters share the products of a stack: the
columns of other adapters are zeroed between A and B. So a step takes few products, however many adapters it has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from frameworks.pytorch.generation.linear import Linear

# Up to this factor, columns of absent adapters are computed along: one product is faster than several.
_MOST_IDLE_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class AdaptableLayer:
    """A linear layer of a decoder, which is found at `owner.attribute`.

    `modules`: names of the modules of the base, and the outputs of each, in the order of the layer's outputs.
    `selects_rows`: its rows are those of StepLayout.selected_rows.
    """

    owner: object
    attribute: str
    modules: tuple[tuple[str, int], ...]
    inputs: int
    selects_rows: bool = False


@runtime_checkable
class AdaptableDecoder(Protocol):
    """A Decoder whose linear layers can have adapters: each row of such a layer is one token of the step."""

    @property
    def adaptable_layers(self) -> Sequence[AdaptableLayer]: ...


class Pair(NamedTuple):
    """The products of one module: `a` [rank, inputs], `b` [rank, outputs] with the scale."""

    a: torch.Tensor
    b: torch.Tensor


class Columns(NamedTuple):
    """A product of all rows with a part of a stack, and where its columns are added.

    `a`: [inputs, columns]. `owners`: the adapter of each column. `parts`: columns, outputs and B of each module; None
    stands for all columns or outputs.
    """

    a: torch.Tensor
    owners: tuple[int, ...]
    parts: list[tuple[slice | None, slice | None, torch.Tensor]]


class LayerStack:
    """The adapters of one layer. `pairs`: by adapter and module, views of the stack."""

    def __init__(self, layer: AdaptableLayer, adapters: Mapping[int, Mapping[str, Pair]]) -> None:
        """`adapters`: by number, each with the pairs of its modules. Copies them."""
        found = [
            [(number, pairs[module]) for number, pairs in adapters.items() if module in pairs]
            for module, _ in layer.modules
        ]
        self._a = torch.cat([pair.a for module in found for _, pair in module])
        self._b = [torch.cat([pair.b for _, pair in module]) if module else None for module in found]
        self._owners = [[number for number, pair in module for _ in range(len(pair.a))] for module in found]
        ends = [outputs for _, outputs in layer.modules]
        self._outputs = [slice(sum(ends[:i]), sum(ends[: i + 1])) if len(ends) > 1 else None for i in range(len(ends))]
        self.pairs: dict[tuple[int, str], Pair] = {}
        first = 0
        for (name, _), module, b in zip(layer.modules, found, self._b, strict=True):
            start = 0
            for number, pair in module:
                assert b is not None
                end = start + len(pair.a)
                self.pairs[number, name] = Pair(self._a[first + start : first + end], b[start:end])
                start = end
            first += start

    def columns_of(self, present: frozenset[int]) -> list[Columns]:
        """Return the products of a step with these adapters."""
        wanted = sum(owner in present for owners in self._owners for owner in owners)
        if not wanted:
            return []
        if len(self._a) <= _MOST_IDLE_COLUMNS * wanted:
            return [self._all_columns()]
        found: list[Columns] = []
        first = 0
        for owners, outputs, b in zip(self._owners, self._outputs, self._b, strict=True):
            for start, end in _runs(owners, present):
                assert b is not None
                a = self._a[first + start : first + end].t()
                found.append(Columns(a, tuple(owners[start:end]), [(None, outputs, b[start:end])]))
            first += len(owners)
        return found

    def _all_columns(self) -> Columns:
        owners = tuple(owner for module in self._owners for owner in module)
        parts: list[tuple[slice | None, slice | None, torch.Tensor]] = []
        first = 0
        for module, outputs, b in zip(self._owners, self._outputs, self._b, strict=True):
            if b is not None:
                columns = slice(first, first + len(module)) if len(module) < len(owners) else None
                parts.append((columns, outputs, b))
            first += len(module)
        return Columns(self._a.t(), owners, parts)


def _runs(owners: Sequence[int], present: frozenset[int]) -> Iterable[tuple[int, int]]:
    """Yield start and end of adjacent columns whose adapters are present."""
    for is_present, run in groupby(range(len(owners)), key=lambda column: owners[column] in present):
        if is_present:
            columns = list(run)
            yield columns[0], columns[-1] + 1


class StepProducts:
    """The products of one step's rows with the adapters. Used by one thread."""

    def __init__(
        self,
        columns: Sequence[list[Columns]],
        row_adapters: torch.Tensor,
        selected_rows: torch.Tensor | None,
    ) -> None:
        """`columns`: of each layer. `row_adapters`: int64 [rows], 0 for a row without adapter. `selected_rows`: as of
        StepLayout.
        """
        self._columns = columns
        self._of_rows = row_adapters
        self._of_selected = row_adapters if selected_rows is None else row_adapters.index_select(0, selected_rows)
        self._masks: dict[tuple[bool, tuple[int, ...]], torch.Tensor | None] = {}

    def add_to(self, product: torch.Tensor, rows: torch.Tensor, layer: int, is_selected: bool) -> None:
        """Add the products of a layer's adapters. `product`: [rows, outputs]. `rows`: [rows, inputs]."""
        for a, owners, parts in self._columns[layer]:
            hidden = torch.mm(rows, a)
            mask = self._mask(is_selected, owners)
            if mask is not None:
                # Not a product: an infinite number of another adapter's column must not become NaN.
                hidden.masked_fill_(mask, 0)
            for columns, outputs, b in parts:
                target = product if outputs is None else product[:, outputs]
                target.addmm_(hidden if columns is None else hidden[:, columns], b)

    def _mask(self, is_selected: bool, owners: tuple[int, ...]) -> torch.Tensor | None:
        """Return bool [rows, columns], true where the column is not of the row's adapter; None if it is everywhere."""
        key = (is_selected, owners)
        if key not in self._masks:
            of_rows = self._of_selected if is_selected else self._of_rows
            mask = of_rows[:, None] != torch.tensor(owners, device=of_rows.device)
            self._masks[key] = mask if bool(mask.any()) else None
        return self._masks[key]


class AdaptedLinear:
    """A Linear with adapters. Without an adapter in the step it is the layer of the base."""

    def __init__(
        self, base: Linear, index: int, is_selected: bool, products: Callable[[], StepProducts | None]
    ) -> None:
        """`index`: of the layer. `products`: of the step that is computed; None without adapters."""
        self.base = base
        self._index = index
        self._is_selected = is_selected
        self._products = products

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = self.base(rows)
        self._adapt(product, rows)
        return product

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        if self._products() is None:
            return self.base.fused_silu(rows)
        return torch.nn.functional.silu(self(rows), inplace=True)

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self.base.fused_mul(rows, factor) if self._products() is None else self(rows).mul_(factor)

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        product = self.base.fused_add(rows, summand)
        self._adapt(product, rows)
        return product

    def _adapt(self, product: torch.Tensor, rows: torch.Tensor) -> None:
        products = self._products()
        if products is not None:
            products.add_to(product, rows, self._index, self._is_selected)
