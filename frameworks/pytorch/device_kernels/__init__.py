"""Kernels of a decoder's step in Triton, which comes with torch for CUDA. Begin with `decode_attention.py`.

Importing a module needs Triton. With `TRITON_INTERPRET=1` before the import the kernels run on CPU tensors, one program
after the other: that is how they are tested. Source of the language: Tillet, Kung and Cox (2019).
"""

import importlib.util
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

import torch

_MIN_CAPABILITY = (8, 0)
_CACHE_VARIABLE = "TRITON_CACHE_DIR"


def unavailable_because(device: torch.device) -> str | None:
    """Return why a decoder on this device does not use the kernels; None: it uses them."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "the device has no Triton"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _MIN_CAPABILITY:
        return f"compute capability {major}.{minor} is below 8.0"
    # It compiles its launcher in C, once.
    has_compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if not has_compiler or not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Triton needs a C compiler and the headers of Python; install gcc and python3-dev"
    return None


def are_available(device: torch.device) -> bool:
    """Return whether a decoder on this device uses the kernels: on CUDA from Ampere on, which Triton supports."""
    return unavailable_because(device) is None


def keep_code_in(folder: Path) -> None:
    """Let Triton keep compiled kernels in a folder, unless the environment names another.

    Its own is in the home folder, which a container may not have. Where the folder cannot be written, each start
    compiles. Call it before the import of a module.
    """
    if _CACHE_VARIABLE in os.environ:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    os.environ[_CACHE_VARIABLE] = str(folder) if is_writable else tempfile.mkdtemp(prefix="roundhouse-triton-")
