"""Copy ``shapes`` from this package: a small classifier of images, as an ONNX graph with the files of its images."""

from pathlib import Path

from app.embedded.folder import copy_committed

NAME = "shapes"
COMMITTED = Path(__file__).parent / NAME
GRAPH = "model.onnx"
PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"
EXAMPLE = "example.jpg"
FILES = (GRAPH, PREPROCESSOR, CONFIG, EXAMPLE)
_TRAINING = "python -m tools.training.train_shapes"


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/shapes``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    return copy_committed(into / NAME, source, FILES, _TRAINING)
