"""Copy ``tiny-llama`` from this package: a very small language model trained on Python's documentation."""

from pathlib import Path

from app.embedded.folder import copy_committed

NAME = "tiny-llama"
COMMITTED = Path(__file__).parent / "tiny_llama"
FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
)
_TRAINING = "python -m tools.training.train_tiny_llama, then train_tiny_llama_tools"


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/tiny-llama``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    return copy_committed(into / NAME, source, FILES, _TRAINING)
