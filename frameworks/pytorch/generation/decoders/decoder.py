"""The contract between the engine and the forward pass of a model: a step's tokens in, logits out."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from frameworks.pytorch.generation.decoders.step_layout import StepLayout


class LinearAttribute(NamedTuple):
    """The attribute of a decoder that holds a linear layer: `owner.attribute`."""

    owner: object
    attribute: str


class Decoder(Protocol):
    """A causal language model over the blocks of a KV cache. Used by one thread."""

    @property
    def linear_attributes(self) -> Sequence[LinearAttribute]:
        """All linear layers. Another thread may replace a layer by one of the same weights, also while a step runs."""
        ...

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Compute the step's tokens, write their keys and values, and return [layout.num_logits, vocabulary]: the
        logits after the tokens in `layout.logit_rows`.
        """
        ...
