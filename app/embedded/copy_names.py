"""Copy ``names`` from this package: a small model that finds names in texts, as a Hugging Face folder."""

from pathlib import Path

from app.embedded.folder import copy_committed

NAME = "names"
COMMITTED = Path(__file__).parent / NAME
FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
_TRAINING = "python -m tools.training.train_names"


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/names``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    return copy_committed(into / NAME, source, FILES, _TRAINING)
