"""The seam between the engine and a model's own arithmetic: a step's tokens in, logits out."""

from typing import Protocol

import torch

from frameworks.pytorch.generation.step_layout import StepLayout


class Decoder(Protocol):
    """A causal language model over the blocks of a key/value memory. One thread uses it."""

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Computes the step's tokens, writes their keys and values, and gives [layout.num_last, vocabulary]: the
        logits of what comes behind the tokens in `layout.last`.
        """
        ...
