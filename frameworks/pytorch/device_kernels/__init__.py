"""Kernels of a decoder's step in Triton, which comes with torch for CUDA. Begin with `decode_attention.py`.

Importing a module needs Triton. With `TRITON_INTERPRET=1` before the import the kernels run on CPU tensors, one program
after the other: that is how they are tested. Source of the language: Tillet, Kung and Cox (2019).
"""

import importlib.util

import torch

_MIN_CAPABILITY = (8, 0)


def are_available(device: torch.device) -> bool:
    """Return whether a decoder on this device uses the kernels: on CUDA, from Ampere on, which Triton supports."""
    if device.type != "cuda" or not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY
