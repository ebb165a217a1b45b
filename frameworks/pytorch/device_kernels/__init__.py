"""Kernels of a decoder's step in Triton, which comes with torch for CUDA. Begin with `decode_attention.py`.

Importing a module needs Triton. With `TRITON_INTERPRET=1` before the import the kernels run on CPU tensors, one program
after the other: that is how they are tested. Source of the language: Tillet, Kung and Cox (2019).
"""

import importlib.util
from pathlib import Path

import torch

from frameworks.pytorch.device_kernels import code_folder, launcher

_MIN_CAPABILITY = (8, 0)
_folder: Path | None = None


def unavailable_because(device: torch.device) -> str | None:
    """Return why a decoder on this device does not use the kernels, with a remedy where there is one; None: it does.

    The first call for a card with kernels loads Triton, and its launcher.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return "the device has no Triton"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _MIN_CAPABILITY:
        return f"compute capability {major}.{minor} is below 8.0"
    if _folder is not None:
        code_folder.keep_code_in(_folder)
    return launcher.failure()


def are_available(device: torch.device) -> bool:
    """Return whether a decoder on this device uses the kernels: on CUDA from Ampere on, which Triton supports."""
    return unavailable_because(device) is None


def set_code_folder(folder: Path) -> None:
    """Keep compiled kernels in this folder, unless the variable TRITON_CACHE_DIR names another."""
    global _folder  # noqa: PLW0603 - Triton's own setting is global too
    _folder = folder
