"""What torch raises when a run fails on a device, in our words."""

import torch

from frameworks.errors import ModelFailed, OutOfMemory, RoundhouseError

# What torch's CPU allocator says; it has no type of its own.
_CPU_OUT_OF_MEMORY = "can't allocate memory"


def as_ours(error: Exception, what: str, device: torch.device) -> RoundhouseError | None:
    """OutOfMemory, or ModelFailed where the device gave up; None for an error that is not the device's. `what` was
    run.
    """
    if not isinstance(error, RuntimeError):
        return None
    if isinstance(error, torch.OutOfMemoryError) or _CPU_OUT_OF_MEMORY in str(error):
        return OutOfMemory(f"{what} does not fit on {device}")
    if device.type != "cpu":
        first_line, _, _ = str(error).partition("\n")
        return ModelFailed(f"the device failed: {first_line}")
    return None
