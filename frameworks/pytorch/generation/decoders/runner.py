"""The contract of the engine with the runner of a step, and the runner with paged attention."""

from typing import Protocol

import torch

from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.compiled_step import CompiledStep
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.scheduling.steps.sequence import StepPart, StepPlan


class StepRunner(Protocol):
    """Compute the steps of one model, with the memory of its sequences. Used by one thread."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the scheduler's pool."""
        ...

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Compute the plan's tokens and return logits [sum of num_logits, vocabulary], in the order of the parts."""
        ...


class PagedRunner:
    """A StepRunner: all sequences of a step in one pass, over the blocks of one KV cache."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KeyValueCache,
        layouts: LayoutMaker,
        adapters: AdapterSet,
        step: CompiledStep | None = None,
    ) -> None:
        """`step`: computes the steps of the decoder, where it has one."""
        self.decoder = decoder
        self.cache = cache
        self.step = step
        self._layouts = layouts
        self._adapters = adapters

    @property
    def block_bytes(self) -> int:
        return self.cache.shape.token_bytes * BLOCK_TOKENS

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits, [sum of num_logits, vocabulary]."""
        if plan.copies:
            self.cache.copy(plan.copies)
        if not self._layouts.makes_tables:
            # The device's kernels read no token that is not written.
            self.cache.clear_begun(plan.parts)
        return self.compute(plan.parts)

    def compute(self, parts: list[StepPart]) -> torch.Tensor:
        """Compute the parts of a plan; return logits [sum of num_logits, vocabulary]."""
        step = self.step  # another thread sets it when its code has been compiled
        return self.compute_by_layers(parts) if step is None else step.logits(parts)

    def compute_by_layers(self, parts: list[StepPart]) -> torch.Tensor:
        """As `compute`, by the decoder's own layers: logits [sum of num_logits, vocabulary]."""
        layout = self._layouts.make(parts)
        with self._adapters.in_step(parts, layout):
            return self.decoder.logits(layout)
