"""Compile the products of language models once, before tests start many processes that would all compile them."""

import os
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "compiled"
_MODULES = ("float32", "float16", "bfloat16", "int8", "int4", "int8_groups", "step")


def keep_compiled_code() -> None:
    """Let this process and those that it starts share one folder. Servers of tests have caches of their own."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))


def main() -> None:
    """Compile all that this CPU can have, by its instruction sets as the environment masks them."""
    keep_compiled_code()
    from frameworks.pytorch.compiled.vectors import lanes

    if lanes():
        for name in _MODULES:
            import_module(f"frameworks.pytorch.compiled.{name}")


if __name__ == "__main__":
    main()
