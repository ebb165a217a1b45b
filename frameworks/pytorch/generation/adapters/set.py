"""The adapters of one decoder: check them against the base, attach and detach them, and compute a step with them."""

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from frameworks.errors import InvalidModel, OutOfMemory
from frameworks.generation.sequence import StepPart
from frameworks.generation.types import AdapterSpec
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.adapters.files import AdapterFiles, read_adapter, read_tensors, warn_of_text_files
from frameworks.pytorch.generation.adapters.layers import (
    AdaptableDecoder,
    AdaptableLayer,
    AdaptedLinear,
    Columns,
    LayerStack,
    Pair,
    StepProducts,
)
from frameworks.pytorch.generation.decoder import Decoder
from frameworks.pytorch.generation.step_layout import StepLayout

# Combinations of adapters whose products are kept.
_MAX_COMBINATIONS = 64


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the base: its layer, and its sizes."""

    layer: int
    inputs: int
    outputs: int


class _Stacks:
    """All adapters at one moment. Never changed, so a step that runs keeps those that it began with."""

    def __init__(self, layers: Sequence[AdaptableLayer], adapters: Mapping[int, Mapping[str, Pair]]) -> None:
        self.numbers = frozenset(adapters)
        self.layers = [
            LayerStack(layer, adapters)
            if any(module in pairs for module, _ in layer.modules for pairs in adapters.values())
            else None
            for layer in layers
        ]
        self._columns: dict[frozenset[int], list[list[Columns]]] = {}

    def columns_of(self, present: frozenset[int]) -> list[list[Columns]]:
        """Return the products of each layer in a step with these adapters."""
        columns = self._columns.get(present)
        if columns is None:
            if len(self._columns) >= _MAX_COMBINATIONS:
                self._columns.clear()
            columns = [[] if stack is None else stack.columns_of(present) for stack in self.layers]
            self._columns[present] = columns
        return columns

    def pairs(self) -> dict[int, dict[str, Pair]]:
        """Return the pairs of each adapter by module, as views."""
        found: dict[int, dict[str, Pair]] = {number: {} for number in sorted(self.numbers)}
        for stack in self.layers:
            for (number, module), pair in {} if stack is None else stack.pairs.items():
                found[number][module] = pair
        return found


class AdapterSet:
    """Adapters by number; a number is used once. One thread computes the steps, any thread may attach and detach."""

    def __init__(self, decoder: Decoder, device: torch.device, dtype: torch.dtype, base: Path) -> None:
        """`dtype`: of the arithmetic. `base`: folder of the model."""
        self._layers = tuple(decoder.adaptable_layers) if isinstance(decoder, AdaptableDecoder) else ()
        self._modules = {
            name: _Module(index, layer.inputs, outputs)
            for index, layer in enumerate(self._layers)
            for name, outputs in layer.modules
        }
        self._device = device
        self._dtype = dtype
        self._base = base
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stacks: _Stacks | None = None
        self._products: StepProducts | None = None

    def needed_bytes(self, folder: Path) -> int:
        """Check an adapter against the base, and return the bytes of its weights. Raises InvalidModel."""
        files = read_adapter(folder)
        self._check(files)
        return files.elements * self._dtype.itemsize

    def attach(self, name: str, folder: Path) -> AdapterSpec:
        """Load an adapter from its folder; steps that begin afterwards may have it.

        Raises InvalidModel where it does not fit the base or is not served, OutOfMemory.
        """
        files = read_adapter(folder)
        self._check(files)
        try:
            pairs = self._pairs(files)
            with self._lock:
                number = next(self._numbers)
                known = {} if self._stacks is None else self._stacks.pairs()
                self._use(_Stacks(self._layers, known | {number: pairs}))
        except RuntimeError as error:
            ours = map_device_error(error, f"{folder}: the weights of the adapter", self._device)
            if isinstance(ours, OutOfMemory):
                raise ours from error
            raise
        warn_of_text_files(name, folder, self._base)
        return AdapterSpec(name, number, files.rank, files.elements * self._dtype.itemsize)

    def detach(self, number: int) -> None:
        """Forget an adapter, which no sequence has."""
        with self._lock:
            known = {} if self._stacks is None else self._stacks.pairs()
            known.pop(number, None)
            self._use(_Stacks(self._layers, known) if known else None)

    @contextmanager
    def in_step(self, parts: Sequence[StepPart], layout: StepLayout) -> Iterator[None]:
        """Compute the step of these parts within the block."""
        stacks = self._stacks
        if stacks is None or not any(part.sequence.request.adapter_id for part in parts):
            yield
            return
        numbers = [part.sequence.request.adapter_id for part in parts]
        # Rows behind the tokens have no adapter.
        row_adapters = np.zeros(len(layout.token_ids), dtype=np.int64)
        row_adapters[: layout.num_tokens] = np.repeat(numbers, [part.num_tokens for part in parts])
        self._products = StepProducts(
            stacks.columns_of(frozenset(numbers) & stacks.numbers),
            torch.from_numpy(row_adapters).to(self._device),
            layout.selected_rows,
        )
        try:
            yield
        finally:
            self._products = None

    def _use(self, stacks: _Stacks | None) -> None:
        """Replace the stacks, and the layers of the decoder where the first adapter begins or the last one ends."""
        had, self._stacks = self._stacks, stacks
        if (had is None) == (stacks is None):
            return
        for index, layer in enumerate(self._layers):
            linear = getattr(layer.owner, layer.attribute)
            if stacks is not None:
                linear = AdaptedLinear(linear, index, layer.selects_rows, lambda: self._products)
            else:
                linear = linear.base
            setattr(layer.owner, layer.attribute, linear)

    def _check(self, files: AdapterFiles) -> None:
        """Raise InvalidModel unless the adapter has exactly the modules that its config targets, in their sizes."""
        file = files.config.file
        if not self._modules:
            raise InvalidModel(f"{self._base}: adapters: expected none, as this architecture is served without them")
        for module, (a, b) in files.shapes.items():
            known = self._modules.get(module)
            if known is None:
                raise InvalidModel(
                    f"{files.folder}: {module[:200]}: expected a linear layer of the base below its head, got another "
                    "module; is it an adapter of this model?"
                )
            if a[1] != known.inputs or b[0] != known.outputs:
                raise InvalidModel(
                    f"{files.folder}: {module}: expected {known.inputs} inputs and {known.outputs} outputs as the base "
                    f"has, got {a[1]} and {b[0]}; is it an adapter of this model?"
                )
        targets = {module for module in self._modules if files.config.targets(module)}
        if targets != files.shapes.keys():
            missing, more = sorted(targets - files.shapes.keys()), sorted(files.shapes.keys() - targets)
            raise InvalidModel(
                f"{file}: target_modules: expected the modules of the weights; the weights lack "
                f"{', '.join(missing[:3]) or 'none'}, and have beyond them {', '.join(more[:3]) or 'none'}"
            )

    def _pairs(self, files: AdapterFiles) -> dict[str, Pair]:
        pairs: dict[str, Pair] = {}
        for module, (a, b) in read_tensors(files).items():
            if not bool(a.isfinite().all() and b.isfinite().all()):
                raise InvalidModel(f"{files.folder}: {module}: expected finite weights, got infinite ones or NaN")
            scaled = (b.float() * files.config.scale_of(module)).t().contiguous()
            pairs[module] = Pair(a.to(self._device, self._dtype), scaled.to(self._device, self._dtype))
        return pairs
