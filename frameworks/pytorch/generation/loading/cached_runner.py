"""Compute a step with transformers' own caches, for models that paged attention does not serve."""

import torch

from frameworks.pytorch.generation.loading.cached_model import CachedModel, SequenceCache
from frameworks.scheduling.steps.sequence import StepPart, StepPlan


class CachedRunner:
    """A StepRunner: the sequences of a step one after another. A sequence holds its cache while it holds blocks."""

    def __init__(self, model: CachedModel, block_bytes: int) -> None:
        """`block_bytes`: of the pool that counts the caches."""
        self.model = model
        self._block_bytes = block_bytes

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits, [sum of num_logits, vocabulary]."""
        return torch.cat([self._compute(part) for part in plan.parts])

    def _compute(self, part: StepPart) -> torch.Tensor:
        sequence = part.sequence
        if part.start == 0:
            sequence.cache = self.model.start()
        cache: SequenceCache | None = sequence.cache
        assert cache is not None, "the tokens before the part are computed"
        return self.model.logits(part.token_ids, part.start, cache, part.num_logits)
