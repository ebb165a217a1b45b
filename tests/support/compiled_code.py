"""Compile the products of language models once, before tests start many processes that would all compile them."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "compiled"


def keep_compiled_code() -> None:
    """Let this process and those that it starts share one folder. Servers of tests have caches of their own."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))


def main() -> None:
    """Compile all that this CPU can have, by its instruction sets as the environment masks them."""
    keep_compiled_code()
    from frameworks.core.machine_code.object_code import is_available, link

    if is_available():
        link("app.protocols.shared.json.numerals.kernel", FOLDER)

    from frameworks.pytorch.compiled.cpu_features import lanes

    if lanes():
        from frameworks.pytorch.compiled.matmul.float_linears import compiles
        from frameworks.pytorch.compiling.parts import ENCODER, FORMATS, STEP, compile_part

        for part in (STEP, ENCODER, *filter(compiles, FORMATS)):
            compile_part(part)


if __name__ == "__main__":
    main()
