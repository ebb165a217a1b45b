"""The device on which Triton's kernels are tested: CUDA, or CPU tensors by Triton's interpreter.

Triton reads the variable when it is imported, which libraries may do: tests/conftest.py imports this first.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

IS_INTERPRETED = not Path("/dev/nvidiactl").exists()
KERNEL_DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if IS_INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"


@cache
def speed_up_interpreter() -> None:
    """Let kernels call functions of kernels without a search through Triton's language for each call.

    The launch has prepared the language. Its core, which the functions of Triton's own library use, needs it once.
    """
    from triton import language
    from triton.runtime import interpreter

    prepared = cache(interpreter._patch_lang)
    standard = vars(language.standard)

    def call(function: Any, *arguments: Any, **options: Any) -> Any:
        if function.fn.__globals__ is standard:
            prepared(function.fn)
        return function.rewrite()(*arguments, **options)

    interpreter.InterpretedFunction.__call__ = call
