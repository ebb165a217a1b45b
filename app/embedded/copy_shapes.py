"""Copy ``shapes`` from this package: a small classifier of images, as an ONNX graph with the files of its images."""

import hashlib
import shutil
from pathlib import Path

from app.embedded.folder import PreparationError, prepare_folder

NAME = "shapes"
COMMITTED = Path(__file__).parent / NAME
GRAPH = "model.onnx"
PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"
EXAMPLE = "example.jpg"
FILES = (GRAPH, PREPROCESSOR, CONFIG, EXAMPLE)


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/shapes``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise PreparationError(
            f"{source}: expected {', '.join(missing)}, got none; restore them, or run: "
            "python -m app.embedded.training.train_shapes"
        )
    recipe = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in FILES}
    return prepare_folder(into / NAME, recipe, lambda folder: _copy(source, folder))


def _copy(source: Path, folder: Path) -> None:
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
