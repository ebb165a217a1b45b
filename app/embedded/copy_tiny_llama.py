"""Copy ``tiny-llama`` from this package: a very small language model trained on Python's documentation."""

import hashlib
import shutil
from pathlib import Path

from app.embedded.folder import PreparationError, prepare_folder

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


def prepare(into: Path, source: Path = COMMITTED) -> bool:
    """Copy the committed files to ``into/tiny-llama``, unless the current ones were copied before.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a committed file is missing.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise PreparationError(
            f"{source}: expected {', '.join(missing)}, got none; restore them, or run: "
            "python -m app.embedded.training.train_tiny_llama, then train_tiny_llama_tools"
        )
    recipe = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in FILES}
    return prepare_folder(into / NAME, recipe, lambda folder: _copy(source, folder))


def _copy(source: Path, folder: Path) -> None:
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
