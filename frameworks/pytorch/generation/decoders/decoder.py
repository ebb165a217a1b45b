"""The contract between the engine and the forward pass of a model: a step's tokens in, logits out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from frameworks.pytorch.generation.decoders.step_layout import StepLayout


class LinearAttribute(NamedTuple):
    """The attribute of a decoder that holds a linear layer: `owner.attribute`."""

    owner: object
    attribute: str


@dataclass(frozen=True, slots=True)
class AdaptableLayer:
    """A linear layer of a decoder at `owner.attribute`, each row of which is one token of a step.

    `modules`: names of the modules of the base, and the outputs of each, in the order of the layer's outputs.
    `selects_rows`: its rows are those of StepLayout.selected_rows.
    """

    owner: object
    attribute: str
    modules: tuple[tuple[str, int], ...]
    inputs: int
    selects_rows: bool = False


class Decoder(Protocol):
    """A causal language model over the blocks of a KV cache. Used by one thread."""

    @property
    def linear_attributes(self) -> Sequence[LinearAttribute]:
        """All linear layers. Another thread may replace a layer by one of the same weights, also while a step runs."""
        ...

    @property
    def adaptable_layers(self) -> Sequence[AdaptableLayer]:
        """The linear layers that adapters may have; empty where no adapters are supported."""
        ...

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """Compute the step's tokens, write their keys and values, and return [layout.num_logits, vocabulary]: the
        logits after the tokens in `layout.logit_rows`.
        """
        ...
