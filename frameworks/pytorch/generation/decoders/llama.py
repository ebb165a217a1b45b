"""The decoder of Llama and related models: transformers' forward pass in a third of the calls.

A token of a small model costs less than the Python around it: transformers' own forward makes about 60 calls a layer,
this one about 20. Query, key and value are one matmul, and element-wise operations are fused into matmuls. Sources:
Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral: a sliding window), Qwen2 (biases), Qwen3 (query and key
normalised by head), Zhang and Sennrich 2019 (root mean square norm).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from frameworks.pytorch.generation.decoders.adapters.layers import base_of
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.decoder import AdaptableLayer, LinearAttribute
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.weights.linear import Linear, MakeLinear
from frameworks.pytorch.generation.weights.packed.modules import joined_linear_of, linear_of

Floats = np.ndarray[Any, np.dtype[np.float32]]
_JOINED = ("q_proj", "k_proj", "v_proj")
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Their RoPE has three sections, which are equal without images.
_VISION_TYPES = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text")
# Rotary embeddings whose frequencies do not depend on the lengths of the batch's sequences.
_FIXED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def is_llama(model: torch.nn.Module) -> bool:
    """Return whether LlamaDecoder computes this model of transformers."""
    return is_llama_config(model.config)


def is_llama_config(config: Any) -> bool:
    """As `is_llama`, of the config of a model."""
    return bool(
        config.model_type in (*MODEL_TYPES, *_VISION_TYPES)
        and config.hidden_act == "silu"
        and (config.rope_parameters or {}).get("rope_type", "default") in _FIXED_ROPE_TYPES
    )


def rope_sections(parameters: Mapping[str, Any], frequencies: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the section of positions that each frequency of a head reads, int64 [head size / 2].

    `parameters`: of RoPE, by config.json. Qwen2-VL has the frequencies of a section together, Qwen3-VL interleaves
    them. Without sections all read the first one.
    """
    lengths = parameters.get("mrope_section")
    if not lengths:
        return np.zeros(frequencies, dtype=np.int64)
    if not parameters.get("mrope_interleaved"):
        return np.repeat(np.arange(len(lengths)), lengths)
    sections = np.zeros(frequencies, dtype=np.int64)
    for section in range(1, len(lengths)):
        sections[section : len(lengths) * lengths[section] : len(lengths)] = section
    return sections


class RootMeanSquareNorm:
    """x / √(mean(x²) + ε) · weight over the last dimension, computed in float32, in the dtype of x.

    On the CPU torch makes seven passes. With the norm of x four suffice: mean(x²) + ε is (|x|² + nε) / n, and the
    root of |x|² + nε is torch.hypot.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        """`weight`: [n]."""
        size = len(weight)
        self.weight = weight
        self._epsilon = epsilon
        self._times_root = weight.float() * size**0.5
        self._floor = torch.tensor((size * epsilon) ** 0.5, device=weight.device)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[…, n] → the same."""
        if states.device.type != "cpu":
            return torch.nn.functional.rms_norm(states, self.weight.shape, self.weight, self._epsilon)
        wide = states.float()
        lengths = torch.linalg.vector_norm(wide, 2, -1, True)
        return (wide / torch.hypot(lengths, self._floor)).mul_(self._times_root).to(states.dtype)


class LlamaDecoder:
    """A Decoder. It moves the weights out of transformers' model layer by layer, so none is in memory twice."""

    layers: "list[LlamaLayer]"

    def __init__(self, model: Any, attention: BlockAttention, make_linear: MakeLinear) -> None:
        """`model`: a LlamaForCausalLM or similar, or a LanguagePart, on its device and in its dtype; unusable
        afterwards.
        """
        body = model.model
        config = model.config
        self._attention = attention
        self.embed = body.embed_tokens
        self.embedding: torch.Tensor | None = getattr(body.embed_tokens, "weight", None)
        """[vocabulary, hidden size]; None where it is packed."""
        frequencies: torch.Tensor = body.rotary_emb.inv_freq.float()
        # The sine has the sign of the half of a head that it is for; the cosine is even.
        self._frequencies = torch.cat((-frequencies, frequencies))
        self._rope_scale = float(body.rotary_emb.attention_scaling)
        self._sections = rope_sections(config.rope_parameters or {}, len(frequencies))
        epsilon = float(config.rms_norm_eps)
        self.final_norm = RootMeanSquareNorm(body.norm.weight, epsilon)
        # A head with the weights of the embedding is packed beside it: the two are read in different orders.
        self.head = linear_of(model.lm_head, make_linear)
        self.layers = []
        self.adaptable_layers: list[AdaptableLayer] = []
        for index, layer in enumerate(body.layers):
            own = self._make_layer(layer, index, attention, epsilon, make_linear)
            self.layers.append(own)
            name = f"{getattr(model, 'name', 'model')}.layers.{index}"
            self.adaptable_layers += own.adaptable_layers(layer, name, index == len(body.layers) - 1)
            body.layers[index] = torch.nn.Identity()
        self.linear_attributes = [LinearAttribute(each.owner, each.attribute) for each in self.adaptable_layers]
        self.linear_attributes.append(LinearAttribute(self, "head"))

    def _make_layer(self, *arguments: Any) -> "LlamaLayer":
        """Return a layer. `arguments`: as of LlamaLayer."""
        return LlamaLayer(*arguments)

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """As Decoder.logits, in the model's dtype."""
        self._attention.layout = layout
        states, images = self.embed(layout.token_ids), layout.images
        if images is not None:
            states = images.replace_in(states)
        cosine, sine = self._rotation(self._angles(layout, self._frequencies), states.dtype)
        *layers, last_layer = self.layers
        for index, layer in enumerate(layers):
            states = layer(states, cosine, sine)
            if images is not None:
                states = images.add_deep(index, states)
        states = last_layer(states, cosine, sine, layout.selected_rows)
        if not layout.num_logits:
            return states.new_empty(0, self.embed.num_embeddings)
        return self.head(self.final_norm(states))[: layout.num_logits]

    def angles(self, positions: Floats) -> tuple[Floats, Floats]:
        """Return cosines and sines of these positions, [tokens] or [sections, tokens]: [tokens, head size / 2] each."""
        if positions.ndim == 1:
            angles = positions[:, None] * self._host_frequencies
        else:
            angles = np.ascontiguousarray(positions[self._sections].T) * self._host_frequencies
        scale = np.float32(self._rope_scale)
        return np.cos(angles) * scale, np.sin(angles) * scale

    @cached_property
    def _host_frequencies(self) -> Floats:
        frequencies: Floats = self._frequencies[len(self._frequencies) // 2 :].cpu().numpy()
        return frequencies

    def _angles(self, layout: StepLayout, frequencies: torch.Tensor) -> torch.Tensor:
        """Return the angle of each frequency, float32 [tokens, frequencies]. `frequencies`: of a head or its half."""
        if layout.rope_positions is None:
            return layout.positions[:, None] * frequencies
        sections = torch.from_numpy(np.resize(self._sections, len(frequencies))).to(frequencies.device)
        return layout.rope_positions.index_select(0, sections).t() * frequencies

    def _rotation(self, angles: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines, and sines with the sign of their half: [tokens, 1, head size] each."""
        angles = angles[:, None]
        cosine, sine = angles.cos(), angles.sin()
        if self._rope_scale != 1:
            cosine, sine = cosine * self._rope_scale, sine * self._rope_scale
        return cosine.to(dtype), sine.to(dtype)


class LlamaLayer:
    """One layer. `window`: tokens that a query attends to, None for all."""

    modules_by_attribute: ClassVar[dict[str, tuple[str, ...]]] = {
        "query_key_value": tuple(f"self_attn.{each}" for each in _JOINED),
        "output": ("self_attn.o_proj",),
        "gate": ("mlp.gate_proj",),
        "up": ("mlp.up_proj",),
        "down": ("mlp.down_proj",),
    }
    """The linear layers, and the modules of transformers that each computes."""

    def __init__(
        self, layer: Any, index: int, attention: BlockAttention, epsilon: float, make_linear: MakeLinear
    ) -> None:
        own = layer.self_attn
        self._index = index
        self._attention = attention
        self.head_size = int(own.head_dim)
        self.key_heads = own.k_proj.out_features // self.head_size
        self.query_heads = own.q_proj.out_features // self.head_size
        self._query_and_key_value_heads = [self.query_heads, 2 * self.key_heads]
        window = getattr(own, "sliding_window", None)
        if own.config.model_type == "mistral":
            window = own.config.sliding_window
        self.window: int | None = window
        self.epsilon = epsilon
        self.scale = float(self.head_size**-0.5)
        self.query_norm = RootMeanSquareNorm(own.q_norm.weight, epsilon) if hasattr(own, "q_norm") else None
        self.key_norm = RootMeanSquareNorm(own.k_norm.weight, epsilon) if hasattr(own, "k_norm") else None
        self.query_key_value = joined_linear_of([getattr(own, each) for each in _JOINED], make_linear)
        self.output = linear_of(own.o_proj, make_linear)
        self._make_feed_forward(layer.mlp, make_linear)
        self.input_norm = RootMeanSquareNorm(layer.input_layernorm.weight, epsilon)
        self.middle_norm = RootMeanSquareNorm(layer.post_attention_layernorm.weight, epsilon)

    def _make_feed_forward(self, module: Any, make_linear: MakeLinear) -> None:
        self.gate = linear_of(module.gate_proj, make_linear)
        self.up = linear_of(module.up_proj, make_linear)
        self.down = linear_of(module.down_proj, make_linear)

    def adaptable_layers(self, module: Any, name: str, is_last: bool) -> list[AdaptableLayer]:
        """Return the linear layers, with the names of the modules of transformers. `module`: transformers' layer.

        After the attention of the last layer only the rows with logits are computed.
        """
        found: list[AdaptableLayer] = []
        for attribute, paths in self.modules_by_attribute.items():
            modules = [module.get_submodule(path) for path in paths]
            outputs = tuple([(f"{name}.{path}", each.out_features) for path, each in zip(paths, modules, strict=True)])
            selects_rows = is_last and attribute != "query_key_value"
            found.append(AdaptableLayer(self, attribute, outputs, modules[0].in_features, selects_rows))
        return found

    @property
    def linears(self) -> list[Linear]:
        """Return the linear layers in the order of their use, without adapters."""
        return [base_of(each) for each in (self.query_key_value, self.output, self.gate, self.up, self.down)]

    def __call__(
        self, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[rows, hidden size] → the same, or only the rows in `wanted`, int64."""
        rows = states.shape[0]
        heads = self.query_key_value(self.input_norm(states)).view(rows, -1, self.head_size)
        self._rotate(heads[:, : self.query_heads + self.key_heads], cosine, sine)
        query, key_value = torch.split_with_sizes(heads, self._query_and_key_value_heads, 1)
        attended = self._attention(self._index, query, key_value, self.window).reshape(rows, -1)
        if wanted is not None:
            # All keys and values are written; rows without logits need no further computation.
            attended, states = attended.index_select(0, wanted), states.index_select(0, wanted)
            if not len(wanted):
                return states
        states = self.output.fused_add(attended, states)
        middle = self.middle_norm(states)
        return self.down.fused_add(self.up.fused_mul(middle, self.gate.fused_silu(middle)), states)

    def _rotate(self, heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        """Apply RoPE (Su et al. 2021) in place to queries and keys; element i of a head pairs with i + size / 2."""
        normed = heads
        if self.query_norm is not None and self.key_norm is not None:
            query, key = heads[:, : self.query_heads], heads[:, self.query_heads :]
            normed = torch.cat((self.query_norm(query), self.key_norm(key)), 1)
        torch.addcmul(normed * cosine, normed.roll(self.head_size // 2, -1), sine, out=heads)
