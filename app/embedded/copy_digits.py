"""``digits``: a small classifier of handwritten digits with a ZipMap output, copied out of this package."""

import hashlib
import shutil
from pathlib import Path

from app.embedded.folder import PreparationError, prepare_folder

NAME = "digits"
GRAPH = "model.onnx"
COMMITTED = Path(__file__).parent / NAME / GRAPH


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copies the committed graph to ``into/digits/model.onnx``, anew whenever the committed one has changed.

    Returns: True if it was made, False if it was there.
    Raises: PreparationError if the committed graph is missing.
    """
    if not source.is_file():
        raise PreparationError(f"{source} is missing; restore it, or run: python -m app.embedded.training.train_digits")
    recipe = {"sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    return prepare_folder(into / NAME, recipe, lambda folder: _copy(source, folder / GRAPH))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
