"""Copy ``tiny-vision`` from this package: a very small language model that sees, and names shapes and their colours."""

from pathlib import Path

from app.embedded.folder import copy_committed

NAME = "tiny-vision"
COMMITTED = Path(__file__).parent / "tiny_vision"
EXAMPLE = "example.jpg"
FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    EXAMPLE,
)
_TRAINING = "python -m tools.training.train_tiny_vision"


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/tiny-vision``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    return copy_committed(into / NAME, source, FILES, _TRAINING)
