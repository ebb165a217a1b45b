"""LlamaDecoder by fused kernels: nine launches a layer in a step of decodes.

A launch costs a GPU more than the arithmetic between two matmuls. Norm and residual, rotation and the write into the
cache, and the gate are a kernel each; query, key and value are one matmul, gate and up too.
"""

from typing import Any, ClassVar

import torch

from frameworks.pytorch.generation.decoders.adapters.layers import base_of
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder, LlamaLayer
from frameworks.pytorch.generation.decoders.step_layout import StepLayout
from frameworks.pytorch.generation.weights.linear import Linear, MakeLinear
from frameworks.pytorch.generation.weights.packed.modules import joined_linear_of, linear_of


class FusedLlamaLayer(LlamaLayer):
    """One layer. Its states are a sum of two: the last product, and the residual."""

    modules_by_attribute: ClassVar[dict[str, tuple[str, ...]]] = {
        "query_key_value": LlamaLayer.modules_by_attribute["query_key_value"],
        "output": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }

    def _make_feed_forward(self, module: Any, make_linear: MakeLinear) -> None:
        self.gate_up = joined_linear_of([module.gate_proj, module.up_proj], make_linear)
        self.down = linear_of(module.down_proj, make_linear)

    @property
    def linears(self) -> list[Linear]:
        return [base_of(each) for each in (self.query_key_value, self.output, self.gate_up, self.down)]

    def compute(
        self,
        states: torch.Tensor,
        residual: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attention: DeviceAttention,
        layout: StepLayout,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last product and the residual, [rows, hidden size] each, or only the rows in `wanted`, int32.

        `states`: the input of the layer, normed. `residual`: the input; it is changed. `rotation`: cosines and sines,
        float32 [rows, head size / 2].
        """
        rows = states.shape[0]
        heads = self.query_key_value(states).view(rows, -1, self.head_size)
        attention.rotate_and_write(self._index, layout, heads, rotation, self._norms, self.epsilon)
        scores = attention.scores(self.scale, self.window, None)
        attended = attention.attend(self._index, layout, heads[:, : self.query_heads], scores).view(rows, -1)
        if wanted is not None:
            # All keys and values are written; rows without logits need no further computation.
            attended, residual = attended.index_select(0, wanted), residual.index_select(0, wanted)
            if not len(wanted):
                return residual, residual
        middle = attention.kernels.norm(self.output(attended), self.middle_norm.weight, self.epsilon, residual)
        return self.down(attention.kernels.gated(self.gate_up(middle))), residual

    @property
    def _norms(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self.query_norm is None or self.key_norm is None:
            return None
        return self.query_norm.weight, self.key_norm.weight


class FusedLlamaDecoder(LlamaDecoder):
    """A Decoder. Its attention has the kernels of a device."""

    def _make_layer(self, *arguments: Any) -> FusedLlamaLayer:
        return FusedLlamaLayer(*arguments)

    def logits(self, layout: StepLayout) -> torch.Tensor:
        """As Decoder.logits, in the model's dtype."""
        attention = self._attention.device
        assert attention is not None
        norm, epsilon = attention.kernels.norm, self.layers[0].epsilon
        residual, images = self.embed(layout.token_ids), layout.images
        if images is not None:
            residual = images.replace_in(residual)
        rotation = self._halves(layout)
        states = norm(residual, self.layers[0].input_norm.weight, epsilon)
        final = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, FusedLlamaLayer)
            wanted = layout.selected_rows if index == final else None
            states, residual = layer.compute(states, residual, rotation, attention, layout, wanted)
            if images is not None and index != final:
                residual = images.add_deep(index, residual)
            if not len(states):
                return states.new_empty(0, self.embed.num_embeddings)
            following = self.final_norm if index == final else self.layers[index + 1].input_norm
            states = norm(states, following.weight, epsilon, residual)
        return self.head(states)[: layout.num_logits]

    def _halves(self, layout: StepLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, float32 [tokens, head size / 2] each."""
        angles = self._angles(layout, self._frequencies[len(self._frequencies) // 2 :])
        cosine, sine = angles.cos(), angles.sin()
        if self._rope_scale != 1:
            cosine, sine = cosine * self._rope_scale, sine * self._rope_scale
        return cosine, sine
