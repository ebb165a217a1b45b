"""The device on which Triton's kernels are tested: CUDA, or CPU tensors by Triton's interpreter.

Triton reads the variable when it is imported, which libraries may do: tests/conftest.py imports this first.
"""

import os
from pathlib import Path

IS_INTERPRETED = not Path("/dev/nvidiactl").exists()
KERNEL_DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if IS_INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
