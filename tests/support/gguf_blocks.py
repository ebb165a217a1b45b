"""Blocks of GGUF's types with super-blocks, for which the package of llama.cpp has no quantization."""

from typing import Any

import gguf
import numpy as np

# Bytes of the 16-bit floats in a block: the scale of the scales, and that of the minima. And about how large a weight
# is with a scale of 1.
_FLOATS = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)} | {
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
_TYPICAL = {"Q4_K": 150.0, "Q5_K": 300.0, "Q6_K": 1300.0}


def random_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, deviation: float = 1.0) -> Any:
    """Return rows of random blocks, uint8. `deviation`: about the standard deviation of their weights."""
    random = np.random.default_rng(sum(shape))
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // elements
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for start in _FLOATS[kind.name]:
        scale = random.uniform(0.5, 1.5, (count, 1)) * deviation / _TYPICAL.get(kind.name, 1.0)
        blocks[:, start : start + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
