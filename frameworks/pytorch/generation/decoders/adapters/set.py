"""The adapters of one decoder: check them against the base, attach and detach them, and compute a step with them."""

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.generation.types import AdapterSpec
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.adapters.batches import runs_of
from frameworks.pytorch.generation.decoders.adapters.compiled import CompiledAdapters
from frameworks.pytorch.generation.decoders.adapters.files import (
    AdapterFiles,
    read_adapter,
    read_tensors,
    warn_of_text_files,
)
from frameworks.pytorch.generation.decoders.adapters.layers import (
    AdaptedLinear,
    Pair,
    Stack,
    StepAdapters,
    stacks_of,
)
from frameworks.pytorch.generation.decoders.decoder import Decoder, LinearAttribute
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.weights.linear import Linear
from frameworks.scheduling.steps.sequence import StepPart


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the base: its layer, and its sizes."""

    layer: int
    inputs: int
    outputs: int


class AdapterSet:
    """Adapters by id; an id is used once. One thread computes the steps, any thread may attach and detach."""

    def __init__(
        self,
        decoder: Decoder,
        device: torch.device,
        dtype: torch.dtype,
        base: Path,
        compiled: CompiledAdapters | None = None,
        *,
        awaits_compiled: bool = False,
    ) -> None:
        """`dtype`: of the weights. `base`: folder of the model. `compiled`: of the decoder's compiled step.
        `awaits_compiled`: `use_compiled` may follow.
        """
        self._layers = tuple(decoder.adaptable_layers)
        self._modules = {
            name: _Module(index, layer.inputs, outputs)
            for index, layer in enumerate(self._layers)
            for name, outputs in layer.modules
        }
        self._device = device
        self._dtype = dtype
        self._base = base
        self._compiled = compiled
        # The compiled step packs them in an order of its own; long prompts are computed without it.
        self._copies = 2 if awaits_compiled or compiled is not None else 1
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        # Of each layer; empty without adapters. Never changed, so a step that runs keeps those that it began with.
        self._stacks: list[list[Stack]] = []
        self._in_step: StepAdapters | None = None

    def needed_bytes(self, folder: Path) -> int:
        """Check an adapter against the base, and return the bytes of its weights. Raises InvalidModel."""
        files = read_adapter(folder)
        self._check(files)
        return self._held_bytes(files)

    def attach(self, name: str, folder: Path) -> AdapterSpec:
        """Load an adapter from its folder; steps that begin afterwards may have it.

        Raises InvalidModel where it does not fit the base or is not served, OutOfMemory.
        """
        files = read_adapter(folder)
        self._check(files)
        try:
            pairs = self._pairs(files)
            with self._lock:
                adapter_id = next(self._ids)
                self._use(self._pairs_by_id() | {adapter_id: pairs})
                if self._compiled is not None:
                    self._compiled.add(adapter_id, pairs)
        except RuntimeError as error:
            ours = map_device_error(error, f"{folder}: the weights of the adapter", self._device)
            if isinstance(ours, OutOfMemory):
                raise ours from error
            raise
        warn_of_text_files(name, folder, self._base)
        return AdapterSpec(name, adapter_id, files.rank, self._held_bytes(files))

    def detach(self, adapter_id: int) -> None:
        """Forget an adapter, which no sequence has."""
        with self._lock:
            known = self._pairs_by_id()
            known.pop(adapter_id, None)
            self._use(known)
            if self._compiled is not None:
                self._compiled.remove(adapter_id)

    def put_linear(self, target: LinearAttribute, linear: Linear) -> None:
        """Replace a linear layer of the decoder, below its adapters."""
        with self._lock:
            found = getattr(target.owner, target.attribute)
            if isinstance(found, AdaptedLinear):
                found.base = linear
            else:
                setattr(target.owner, target.attribute, linear)

    def use_compiled(self, compiled: CompiledAdapters) -> None:
        """Add all adapters, of now and later, to the compiled step. Compiles, unless the code is in the cache."""
        with self._lock:
            for adapter_id, pairs in self._pairs_by_id().items():
                compiled.add(adapter_id, pairs)
            self._compiled = compiled

    @contextmanager
    def in_step(self, parts: Sequence[StepPart], layout: StepLayout) -> Iterator[None]:
        """Compute the step of these parts within the block."""
        stacks = self._stacks
        adapters = [part.sequence.request.adapter_id for part in parts]
        if not stacks or not any(adapters):
            yield
            return
        runs = selected = runs_of(adapters, [part.num_tokens for part in parts], self._device)
        if layout.selected_rows is not None:
            selected = runs_of(adapters, [part.num_logits for part in parts], self._device)
        self._in_step = StepAdapters(stacks, runs, selected, self._device)
        try:
            yield
        finally:
            self._in_step = None

    def _held_bytes(self, files: AdapterFiles) -> int:
        return self._copies * files.elements * self._dtype.itemsize

    def _pairs_by_id(self) -> dict[int, dict[str, Pair]]:
        """Return the pairs of each adapter by module, as views, by ascending id."""
        found: dict[int, dict[str, Pair]] = {}
        for stack in itertools.chain.from_iterable(self._stacks):
            for adapter_id in stack.adapter_ids:
                found.setdefault(adapter_id, {}).update(stack.pairs_of(adapter_id))
        return dict(sorted(found.items()))

    def _use(self, adapters: Mapping[int, Mapping[str, Pair]]) -> None:
        """Replace the stacks; wrap the decoder's layers for the first adapter, and unwrap them after the last one."""
        had = bool(self._stacks)
        self._stacks = [stacks_of(layer, adapters) for layer in self._layers] if adapters else []
        if had == bool(adapters):
            return
        for index, layer in enumerate(self._layers):
            linear = getattr(layer.owner, layer.attribute)
            if adapters:
                linear = AdaptedLinear(linear, index, layer.selects_rows, lambda: self._in_step)
            else:
                linear = linear.base
            setattr(layer.owner, layer.attribute, linear)

    def _check(self, files: AdapterFiles) -> None:
        """Raise InvalidModel unless the adapter has exactly the modules that its config targets, in their shapes."""
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
            scaled = (b.float() * files.config.scale_of(module)).t()
            pairs[module] = Pair(a.t().to(self._device, self._dtype), scaled.to(self._device, self._dtype))
        return pairs
