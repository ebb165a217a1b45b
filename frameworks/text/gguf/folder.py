"""The files beside the weights of a model, made of a GGUF file's metadata and kept below `models.cache_dir`."""

import shutil
import tempfile
from pathlib import Path

import orjson

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.config import read_config, read_generation_config
from frameworks.text.gguf.header import GgufFile, read_header
from frameworks.text.gguf.tokenizer import read_tokenizer, read_tokenizer_config

# Increase it whenever the files made of the same header change.
_VERSION = 1
_SUFFIX = ".gguf"
_LONGEST_NAME = 60
_PARTS = "split.count"


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that a model's path names: itself, or the only one in a folder without other weights.

    None where it names none. Raises InvalidModel for a folder with several.
    """
    if path.is_file():
        return path if path.suffix.lower() == _SUFFIX else None
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    found = sorted(each for each in path.iterdir() if each.suffix.lower() == _SUFFIX and each.is_file())
    if len(found) > 1:
        names = ", ".join(each.name for each in found[:5])
        raise InvalidModel(f"{path}: expected one GGUF file, got {len(found)}: {names}; name one of them in path")
    return found[0] if found else None


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a model, and check everything that can be checked without its tensors.

    Raises InvalidModel.
    """
    file = read_header(path)
    if file.integer(_PARTS, 1) > 1:
        raise file.wrong(_PARTS, "one file: join the parts with llama-gguf-split --merge", file.metadata[_PARTS])
    read_config(file)
    return file


class GgufFolders:
    """Folders `<cache_dir>/gguf/<name>-<digest of the header>-v<version>/`, each with the files that a Hugging Face
    folder has beside its weights. Thread-safe, and for several processes.
    """

    def __init__(self, cache_dir: Path) -> None:
        """`cache_dir` is absolute; it is created at the first use."""
        self._cache_dir = cache_dir
        self._root = cache_dir / "gguf"

    def folder_of(self, file: GgufFile) -> Path:
        """Return the folder of a file; make it at the first call. Raises InvalidModel where it cannot be written."""
        folder = self._root / f"{file.path.stem[:_LONGEST_NAME]}-{file.digest}-v{_VERSION}"
        if not folder.is_dir():
            files = {
                "config.json": orjson.dumps(read_config(file)),
                "generation_config.json": orjson.dumps(read_generation_config(file)),
                "tokenizer_config.json": orjson.dumps(read_tokenizer_config(file)),
                "tokenizer.json": read_tokenizer(file).to_str().encode(),
            }
            try:
                self._write(folder, files)
            except OSError as error:
                raise InvalidModel(
                    f"models.cache_dir = {self._cache_dir}: the tokenizer of {file.path.name} cannot be written there "
                    f"({error}); free disk space, make it writable or name another folder",
                    "its tokenizer cannot be written to models.cache_dir; the log of the server has the reason",
                ) from error
        return folder

    def _write(self, folder: Path, files: dict[str, bytes]) -> None:
        """Write into a temporary folder and rename it, so that an incomplete folder is never used."""
        self._root.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=self._root))
        try:
            for name, content in files.items():
                (making / name).write_bytes(content)
            making.chmod(0o755)
            try:
                making.rename(folder)
            except OSError:
                # Another process was first.
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
