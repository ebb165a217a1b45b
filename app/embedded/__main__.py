"""Prepare the embedded models: ``python -m app.embedded [--into ./models]``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app.embedded import (
    copy_digits,
    copy_minilm,
    copy_names,
    copy_shapes,
    copy_sounds,
    copy_tiny_llama,
    copy_tiny_vision,
    export_minilm,
)
from app.embedded.folder import PreparationError

MODELS = (
    *(copy_minilm, export_minilm, copy_digits, copy_shapes, copy_tiny_llama, copy_tiny_vision, copy_names),
    copy_sounds,
)
"""In this order: export_minilm reads the copy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the missing models, with one line of output for each. Returns 0, or 1 with the error on stderr."""
    parser = argparse.ArgumentParser(prog="python -m app.embedded", description="Prepare the embedded models.")
    parser.add_argument("--into", type=Path, default=Path("models"), help="folder of models (default: ./models)")
    into: Path = parser.parse_args(arguments).into
    for model in MODELS:
        print(f"{into / model.NAME}: ", end="", flush=True)
        started = time.perf_counter()
        try:
            made = model.prepare(into)
        except (PreparationError, OSError) as error:
            print("failed")
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"made in {time.perf_counter() - started:.1f} s" if made else "exists")
    return 0


if __name__ == "__main__":
    sys.exit(main())
