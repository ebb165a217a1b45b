"""The contract between the engine and a model's arithmetic: a step's tokens in, logits out."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from frameworks.pytorch.generation.decoders.step_layout import StepLayout


class LinearPlace(NamedTuple):
    """Where a decoder has a linear layer: `owner.attribute`."""

    owner: object
    attribute: str


class Decoder(Protocol):
    """A causal language model over the blocks of a key/value cache. Used by one thread."""

    @property
    def linear_places(self) -> Sequence[LinearPlace]:
        """All linear layers. Another thread may put a layer of the same weights there, while a step runs too."""
        ...

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Compute the step's tokens, write their keys and values, and return [layout.num_logits, vocabulary]: the
        logits after the tokens in `layout.logit_rows`.
        """
        ...
