"""What the `[memory]` table of config.toml configures, and the rules every settings model of the house keeps."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from memory.sizes import Bytes

SETTINGS_RULES = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
"""Unknown keys are errors, nothing changes after loading, and a type is never guessed ("8080" is no number)."""


class MemorySettings(BaseModel):
    """Ceilings and thresholds of the tensor pool, and how weights come into memory."""

    model_config = SETTINGS_RULES

    pool_size: Annotated[int, Field(ge=1, le=64)] = 16
    """Number of size classes, each with its own free list."""
    max_tensor_size: Annotated[Bytes, Field(ge=1)] = 512 * 1024**2
    """Larger tensors are never pooled."""
    max_allocated: Annotated[Bytes, Field(ge=1)] = 16 * 1024**3
    """The pool's own ceiling, per device."""
    enable_memory_mapping: bool = True
    """Weights are mapped, not read."""
    gc_threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of max_allocated past which idle buffers are dropped."""
    max_model_memory: Annotated[Bytes, Field(ge=1)] | None = None
    """Bytes all loaded models together may take of each device; None: 80 % of what it has free at start."""
