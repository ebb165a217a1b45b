"""Settings of the `[memory]` table, and the rules of every settings class."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from memory.sizes import Bytes

SETTINGS_RULES = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)
"""Unknown keys are errors, settings are frozen, and types are never converted: "8080" is not an integer. A validator is
built for the first value of its class: most classes are only a part of others.
"""


class MemorySettings(BaseModel):
    """`[memory]`: bounds of models and of the tensor pool."""

    model_config = SETTINGS_RULES

    pool_size: Annotated[int, Field(ge=1, le=64)] = 16
    """Number of size classes of pooled buffers: `max_tensor_size`, half of it, a quarter, and so on."""
    max_tensor_size: Annotated[Bytes, Field(ge=1)] = 512 * 1024**2
    """Maximum size of a pooled tensor."""
    max_allocated: Annotated[Bytes, Field(ge=1)] = 16 * 1024**3
    """Maximum bytes that the pool holds on each device; tensors beyond it are allocated and freed individually."""
    enable_memory_mapping: bool = True
    """Whether weights in safetensors and ONNX external data are mapped into memory, not read. Replace the files of a
    loaded model by renaming; never write into them."""
    gc_threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of `max_allocated` beyond which idle buffers are freed, least recently used first, down to half."""
    max_model_memory: Annotated[Bytes, Field(ge=1)] | None = None
    """Maximum bytes that all loaded models and collections together take on each device. None: 80 % of the free memory
    at start."""
