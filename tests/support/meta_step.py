"""Steps of a decoder whose tensors have shapes but no numbers: what they launch on a device that is not here."""

import torch
from transformers import AutoModelForCausalLM

from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.fused_llama import FusedLlamaDecoder
from frameworks.pytorch.generation.decoders.kv_cache import CacheShape, KeyValueCache
from frameworks.pytorch.generation.decoders.llama import is_llama
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.decoders.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.weights.linear import PlainLinear
from frameworks.scheduling.steps.sequence import StepPart
from tests.frameworks.pytorch.generation.parts import part_of
from tests.support.models.causal_folders import VOCABULARY_SIZE, causal_config
from tests.support.step_recording import recording

DECODES = [part_of([3, 9], 40, 1), part_of([5], 3, 1)]
PREFILLS = [part_of([1, 2], 0, 45), part_of([7, 8], 33, 9)]
"""Two decodes, and two parts of prompts."""


class MetaStep:
    """A decoder whose tensors have shapes but no numbers, on a device of their own; kernels are recorded only."""

    def __init__(self, family: str, layers: int = 2) -> None:
        self.device = torch.device("meta")
        config = causal_config(family, **({"n_layer": layers} if family == "gpt2" else {"num_hidden_layers": layers}))
        query_heads = config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or query_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // query_heads
        with self.device:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        cache = KeyValueCache(CacheShape(layers, heads, size, torch.bfloat16), 20, self.device)
        attention = BlockAttention(cache, query_heads, size**-0.5, DeviceAttention(cache, query_heads, self.device))
        kind = FusedLlamaDecoder if is_llama(model) else TransformersDecoder
        self.decoder = kind(model, attention, PlainLinear)
        self.layouts = LayoutMaker(cache, query_heads // heads, self.device, makes_tables=True)

    def launches(self, parts: list[StepPart]) -> list[str]:
        """Return the launches of the second step of such parts; AssertionError for a value that the host reads."""
        layout = self.layouts.make(parts)
        for _ in range(2):  # the first step allocates buffers of the kernels
            with torch.inference_mode(), recording(self.device, runs_kernels=False) as recorded:
                logits = self.decoder.logits(layout)
        assert logits.device == self.device
        assert logits.shape == (layout.num_logits, VOCABULARY_SIZE)
        return recorded.names
