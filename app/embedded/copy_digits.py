"""Copy ``digits`` from this package: a small classifier of handwritten digits with a ZipMap output."""

import hashlib
import shutil
from pathlib import Path

from app.embedded.folder import PreparationError, prepare_folder

NAME = "digits"
GRAPH = "model.onnx"
COMMITTED = Path(__file__).parent / NAME / GRAPH


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed graph to ``into/digits/model.onnx``, unless the current one was copied before.

    Returns: True if it was copied, False if it exists.
    Raises: PreparationError if the committed graph is missing.
    """
    if not source.is_file():
        message = f"expected the file {source}, got none; restore it, or run: python -m tools.training.train_digits"
        raise PreparationError(message)
    recipe = {"sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    return prepare_folder(into / NAME, recipe, lambda folder: _copy(source, folder / GRAPH))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
