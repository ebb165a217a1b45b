"""Load the model of transformers that a decoder is made of, from plain or from packed weights."""

from collections import Counter
from typing import Any

import torch

from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.weights.packed.building import build_causal_model, packed_modules
from frameworks.pytorch.generation.weights.packed.modules import PackedEmbedding
from frameworks.pytorch.loader import load_causal_model

PACKED_TOLERANCE = 0.25
"""Largest error of the logits with packed weights, relative to their spread: layers may quantize activations, and
weights once more. Another kind of attention is off by more than 1.
"""


def load_model(load: GeneratorLoad) -> Any:
    """Load the model of a folder, or of its source of packed weights. Raises InvalidModel, OutOfMemory."""
    if load.source is not None:
        return build_causal_model(load.folder, load.source, load.dtype, load.device)
    return load_causal_model(load.folder, load.dtype, load.device, load.performance.enable_memory_mapping)


def packed_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the embedding tables that are made of packed weights."""
    return sum(module.held_bytes for module in model.modules() if isinstance(module, PackedEmbedding))


def packed_dtype(model: torch.nn.Module) -> str | None:
    """Return the dtype of most weights in packed layers, int4 or int8; None where none is packed."""
    counts: Counter[str] = Counter()
    for module in packed_modules(model):
        counts[f"int{module.packed.bits}"] += module.packed.outputs * module.packed.inputs
    return counts.most_common(1)[0][0] if counts else None


def use_fast_layers(model: torch.nn.Module) -> int:
    """Let a model of transformers compute with our layers of packed weights; return about how many bytes they take."""
    packed = packed_modules(model)
    for module in packed:
        module.make_fast()
    return sum(module.packed.held_bytes for module in packed)
