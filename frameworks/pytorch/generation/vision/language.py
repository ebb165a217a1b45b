"""The language model within a model that sees, in the form of an AutoModelForCausalLM."""

from typing import Any

import torch

from frameworks.core.settings.entries import Kernels
from frameworks.generation.image_text_models import SERVED
from frameworks.pytorch.cpu_layers.packed import PACKINGS, pack_layers, packed_layer_bytes


class LanguagePart(torch.nn.Module):
    """The text decoder and the head of a model that sees: the modules whose rows are tokens.

    `whole`: transformers' model. A pass without images is its own.
    """

    def __init__(self, whole: Any) -> None:
        """Raises AttributeError, TypeError or ValueError where transformers cannot tell the parts."""
        super().__init__()
        self._whole = (whole,)  # no submodule
        self.model = whole.get_decoder()
        self.lm_head = whole.get_output_embeddings()
        self.config = whole.config.get_text_config(decoder=True)
        if self.model is whole or self.lm_head is None:
            raise ValueError("it has no text decoder of its own")
        self.name = next(name for name, module in whole.named_modules() if module is self.model)
        """The name of the decoder within the whole model."""

    @property
    def whole(self) -> Any:
        return self._whole[0]

    @property
    def device(self) -> torch.device:
        device: torch.device = self.whole.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.whole.dtype
        return dtype

    def get_output_embeddings(self) -> torch.nn.Module:
        head: torch.nn.Module = self.lm_head
        return head

    def get_input_embeddings(self) -> torch.nn.Module:
        embeddings: torch.nn.Module = self.whole.get_input_embeddings()
        return embeddings

    def set_attn_implementation(self, name: str) -> None:
        """Set the attention of the text decoder alone."""
        self.model.set_attn_implementation(name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """As the whole model, which transformers' own pass is."""
        return self.whole(*arguments, **options)


def sees(model: Any) -> bool:
    """Return whether a model of transformers reads images and generates text."""
    return type(model).__name__ in SERVED


def other_bytes(part: LanguagePart) -> int:
    """Return the bytes of the weights outside the language model."""
    own = {id(tensor) for tensor in [*part.parameters(), *part.buffers()]}
    whole: dict[int, torch.Tensor] = {id(each): each for each in [*part.whole.parameters(), *part.whole.buffers()]}
    layer_bytes = packed_layer_bytes(set(part.whole.modules()) - set(part.modules()))
    return layer_bytes + sum(tensor.nbytes for key, tensor in whole.items() if key not in own)


def pack_vision(whole: Any, wanted: Kernels) -> None:
    """Pack the weights of the layers outside the language model, where that is faster on this CPU.

    `whole`: transformers' model, in eval mode. `wanted`: of its entry, whose names are those of language models.
    """
    kept = {*whole.get_decoder().modules(), whole.get_output_embeddings()}
    pack_layers(whole, wanted if wanted in PACKINGS else "auto", kept)
