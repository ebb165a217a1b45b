"""Copy ``sounds`` from this package: a small classifier of sounds, as a Hugging Face folder."""

from pathlib import Path

from app.embedded.folder import copy_committed

NAME = "sounds"
COMMITTED = Path(__file__).parent / NAME
EXAMPLE = "example.wav"
FILES = ("model.safetensors", "config.json", "preprocessor_config.json", EXAMPLE)
_TRAINING = "python -m tools.training.train_sounds"


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/sounds``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    return copy_committed(into / NAME, source, FILES, _TRAINING)
