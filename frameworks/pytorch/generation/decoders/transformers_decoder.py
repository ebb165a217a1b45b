"""Any other causal model of transformers: its own forward, with our attention and our linear layers in it.

transformers' models look their attention function up in a table, and pass it query, key and value of all tokens.
transformers' own continuous batching uses the same interface (`generation/continuous_batching`).
"""

import inspect
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.pytorch_utils import Conv1D

from frameworks.core.progress import step
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.decoder import AdaptableLayer, LinearAttribute
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.vision.language import LanguagePart
from frameworks.pytorch.generation.vision.step_images import StepImages
from frameworks.pytorch.generation.weights.linear import Linear, MakeLinear
from frameworks.pytorch.generation.weights.packed.modules import PackedModule, linear_of

_ATTENTION = "roundhouse_blocks"
_ATTENTION_ATTRIBUTE = "_roundhouse_attention"
# Options of an attention function that have no effect here.
_IGNORED_OPTIONS = frozenset(
    {
        *("dropout", "is_causal", "position_ids", "use_cache", "cache_position", "output_attentions"),
        *("output_hidden_states", "output_router_logits"),
    }
)


class TransformersDecoder:
    """A Decoder."""

    def __init__(self, model: Any, attention: BlockAttention, make_linear: MakeLinear) -> None:
        """`model`: an AutoModelForCausalLM or a LanguagePart, on its device, in its dtype; its weights stay in use."""
        self._model = model
        self._embed = model.get_input_embeddings()
        self._images: StepImages | None = None
        if isinstance(model, LanguagePart):
            for index, layer in enumerate(getattr(model.model, "layers", ())):
                layer.register_forward_hook(partial(self._add_deep, index))
        self._attention = attention
        for module in model.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                setattr(module, _ATTENTION_ATTRIBUTE, attention)
        self.adaptable_layers = put_linears(model, make_linear)
        modules = [module for module in model.modules() if isinstance(module, LinearModule)]
        self.linear_attributes = [LinearAttribute(module, "linear") for module in modules]
        model.set_attn_implementation(_ATTENTION)
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """As Decoder.logits, in the model's dtype."""
        self._attention.layout = layout
        # At least one row: no model's tests cover a batch of zero rows.
        last = layout.logit_rows if layout.num_logits else layout.positions.new_zeros(1)
        options: dict[str, Any] = {"logits_to_keep": last} if self._selects_logits else {}
        token_ids, positions = layout.token_ids.long()[None], layout.positions.long()[None]
        inputs = {"input_ids": token_ids}
        if layout.images is not None and layout.images.vectors is not None:
            inputs = {"inputs_embeds": layout.images.replace_in(self._embed(token_ids)[0])[None]}
        if layout.rope_positions is not None:
            positions = layout.rope_positions[:, None]
        self._images = layout.images
        output = self._model(**inputs, position_ids=positions, use_cache=False, **options)
        logits: torch.Tensor = output.logits[0]
        return (logits if self._selects_logits else logits.index_select(0, layout.logit_rows))[: layout.num_logits]

    def _add_deep(self, index: int, _: Any, __: Any, output: Any) -> Any:
        """Add the vectors of images to the output of a layer, states [1, rows, hidden size] or a tuple with them."""
        images = self._images
        if images is None or index >= len(images.deep):
            return output
        if isinstance(output, tuple):
            return images.add_deep(index, output[0][0])[None], *output[1:]
        return images.add_deep(index, output[0])[None]


class LinearModule(torch.nn.Module):
    """One of our linear layers, as a module of transformers."""

    weight = None
    """T5 asks for its dtype, where there is one."""

    def __init__(self, linear: Linear, outputs: int) -> None:
        super().__init__()
        self.linear = linear
        self._outputs = outputs

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        rows = self.linear(states.reshape(-1, states.shape[-1]))
        return rows.view(*states.shape[:-1], self._outputs)


def put_linears(model: Any, make_linear: MakeLinear) -> list[AdaptableLayer]:
    """Replace the linear layers; return those that compute one row for each token of a step: not the head, and no
    experts.
    """
    adaptable: list[AdaptableLayer] = []
    head = model.get_output_embeddings()
    of_language = set(model.modules())
    for path, parent in list(getattr(model, "whole", model).named_modules()):
        for name, module in list(parent.named_children()):
            if module not in of_language:
                continue  # of a vision tower
            if isinstance(module, torch.nn.Linear | PackedModule):
                replacement = LinearModule(linear_of(module, make_linear), module.out_features)
                inputs, outputs = module.in_features, module.out_features
            elif isinstance(module, Conv1D):  # GPT-2's layer, whose weights are transposed
                replacement = LinearModule(make_linear(module.weight.t().contiguous(), module.bias), module.nf)
                inputs, outputs = module.nx, module.nf
                step()
            else:
                continue
            setattr(parent, name, replacement)
            full_name = f"{path}.{name}" if path else name
            if module is not head and "expert" not in full_name:
                adaptable.append(AdaptableLayer(replacement, "linear", ((full_name, outputs),), inputs))
    return adaptable


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' attention functions: [1, heads, tokens, head size] → [1, tokens, heads, head size]."""
    scaling, window, softcap = (options.pop(name, None) for name in ("scaling", "sliding_window", "softcap"))
    # A layer with an unknown option (sinks, biases by distance) would get a wrong result.
    strange = [name for name, given in options.items() if name not in _IGNORED_OPTIONS and given is not None]
    if strange or attention_mask is not None:
        raise ValueError(f"{type(module).__name__} needs {', '.join(strange) or 'a mask'} of its attention")
    attention: BlockAttention = getattr(module, _ATTENTION_ATTRIBUTE)
    index: Any = module.layer_idx
    key_value = torch.cat((key[0], value[0])).transpose(0, 1)
    attended = attention(index, query[0].transpose(0, 1), key_value, window, scaling, softcap)
    # As transformers' own functions: some models take a view of it.
    return attended[None].contiguous(), None


# Without an AttentionMaskInterface of the same name transformers makes no masks: the layout decides which tokens are
# visible. With one it would look for packed sequences in the positions, and wait for the device.
AttentionInterface.register(_ATTENTION, _attend)
