"""The contract of the engine with the runner of a step, and the runner with paged attention."""

from typing import Protocol

import torch

from frameworks.pytorch.device.queue import DeviceQueue, current
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.vision.step_images import StepImages, images_of
from frameworks.pytorch.generation.vision.tower import VisionTower
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


class StepComputer(Protocol):
    """Computes steps of a decoder without calling its layers one by one."""

    def computes(self, parts: list[StepPart]) -> bool:
        """Return whether it computes this step."""
        ...

    def logits(self, parts: list[StepPart], images: StepImages | None = None) -> torch.Tensor:
        """As PagedRunner.compute, for a step that it computes. The tensor is valid until the next step.

        `images`: those of the step.
        """
        ...


class PagedRunner:
    """A StepRunner: all sequences of a step in one pass, over the blocks of one KV cache."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KeyValueCache,
        layouts: LayoutMaker,
        adapters: AdapterSet,
        step: "StepComputer | None" = None,
        queue: DeviceQueue | None = None,
        sampled: SampledIds | None = None,
    ) -> None:
        """`step`: computes steps of the decoder, where it can. `queue`, `sampled`: of a device with kernels."""
        self.tower: VisionTower | None = None
        """Makes vectors of images; None: no sequence has any."""
        self.decoder = decoder
        self.cache = cache
        self.step = step
        self.queue = queue
        self.sampled = sampled
        self.layouts = layouts
        self._adapters = adapters

    @property
    def block_bytes(self) -> int:
        return self.cache.shape.token_bytes * BLOCK_TOKENS

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits, [sum of num_logits, vocabulary]."""
        if plan.copies:
            self._catch_up()
            self.cache.copy(plan.copies)
        if not self.layouts.makes_tables:
            # The device's kernels read no token that is not written.
            self.cache.clear_begun(plan.parts)
        return self.compute(plan.parts)

    def compute(self, parts: list[StepPart]) -> torch.Tensor:
        """Compute the parts of a plan; return logits [sum of num_logits, vocabulary]."""
        step = self.step  # another thread sets it when its code has been compiled
        with current(self.cache.device):
            images = None if self.tower is None else images_of(parts, self.tower)
            if step is None or not step.computes(parts) or (images is not None and images.need_layers):
                return self._by_layers(parts, images)
            return step.logits(parts, images)

    def compute_by_layers(self, parts: list[StepPart]) -> torch.Tensor:
        """As `compute`, by the decoder's own layers: logits [sum of num_logits, vocabulary]."""
        return self._by_layers(parts, None if self.tower is None else images_of(parts, self.tower))

    def _by_layers(self, parts: list[StepPart], images: StepImages | None) -> torch.Tensor:
        self._catch_up()
        layout = self.layouts.make(parts, images)
        with self._adapters.in_step(parts, layout):
            return self.decoder.logits(layout)

    def _catch_up(self) -> None:
        if self.queue is not None:
            self.queue.catch_up()
