"""The contract between the engine and a model's arithmetic: a step's tokens in, logits out."""

from typing import Protocol

import torch

from frameworks.pytorch.generation.step_layout import StepLayout


class Decoder(Protocol):
    """A causal language model over the blocks of a key/value cache. Used by one thread."""

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Compute the step's tokens, write their keys and values, and return [layout.num_logits, vocabulary]: the
        logits after the tokens in `layout.logit_rows`.
        """
        ...
