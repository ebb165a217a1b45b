"""The seam between the engine and a model's own arithmetic: a step's tokens in, logits out."""

from typing import Protocol

import torch

from frameworks.pytorch.generation.kv_cache import StepLayout


class Decoder(Protocol):
    """A causal language model over the blocks of a key/value memory. One thread uses it."""

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Computes the step's tokens, writes their keys and values, and gives [layout.last, vocabulary]: the logits of
        what comes behind them.
        """
        ...
