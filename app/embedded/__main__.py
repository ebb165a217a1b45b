"""``python -m app.embedded [--into ./models]``: prepares the embedded models and says so, one line each."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app.embedded import copy_digits, copy_minilm, copy_tiny_llama, export_minilm
from app.embedded.folder import PreparationError

MODELS = (copy_minilm, export_minilm, copy_digits, copy_tiny_llama)
"""In this order: the export reads the copy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares what is not there yet. Returns the exit status: 0, or 1 with the reason on stderr."""
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
        print(f"made in {time.perf_counter() - started:.1f} s" if made else "is there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
