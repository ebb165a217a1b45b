"""Errors of torch: those that a run of a model raises, and the mapping of a device's errors to ours."""

import torch

from frameworks.core.errors import ModelFailed, OutOfMemory, RoundhouseError, without_paths

RUN_ERRORS = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
"""Errors of a run where the files of a model do not fit its code."""
# The message of torch's CPU allocator; it has no type of its own.
_CPU_OUT_OF_MEMORY = "can't allocate memory"


def map_device_error(error: Exception, what: str, device: torch.device) -> RoundhouseError | None:
    """Return OutOfMemory, ModelFailed where the device failed, or None where the error is not the device's.

    `what`: names the work for the message.
    """
    if not isinstance(error, RuntimeError):
        return None
    if isinstance(error, torch.OutOfMemoryError) or _CPU_OUT_OF_MEMORY in str(error):
        return OutOfMemory(f"{what} does not fit on {device}")
    if device.type != "cpu":
        first_line, _, _ = str(error).partition("\n")
        return ModelFailed(f"the device failed: {first_line}", public=f"the device failed: {without_paths(first_line)}")
    return None


def empty_cache(device: torch.device) -> None:
    """Return the memory that torch caches to the device, after a failed run or a closed model."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
