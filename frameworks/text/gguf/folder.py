"""The files beside the weights of a model, made of a GGUF file's metadata and kept below `models.cache_dir`."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import orjson

from frameworks.core.errors import InvalidModel
from frameworks.core.files import is_gguf, is_projector
from frameworks.text.gguf.config import needs_vision, read_config, read_generation_config
from frameworks.text.gguf.header import GgufFile, read_header
from frameworks.text.gguf.tokenizer import read_tokenizer, read_tokenizer_config
from frameworks.text.gguf.vision import VisionPart, read_vision

# Increase it whenever the files made of the same header change.
_VERSION = 2
_SUFFIX = ".gguf"
_LONGEST_NAME = 60
_PARTS = "split.count"


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that a model's path names: itself, or the only one in a folder without other weights, apart
    from its mmproj file.

    None where it names none. Raises InvalidModel for a folder with several.
    """
    if path.is_file():
        return path if path.suffix.lower() == _SUFFIX else None
    return _only(path, [each for each in _files(path) if is_gguf(each)], "GGUF file", "name one of them in path")


def find_projector(path: Path) -> Path | None:
    """Return the mmproj file beside the GGUF file of a folder: the one with "mmproj" in its name.

    None where the path is a file or has none. Raises InvalidModel for a folder with several.
    """
    found = [] if path.is_file() else [each for each in _files(path) if is_projector(each)]
    return _only(path, found, "mmproj file", "leave one of them in the folder")


def _files(path: Path) -> list[Path]:
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return []
    return sorted(each for each in path.iterdir() if each.suffix.lower() == _SUFFIX and each.is_file())


def _only(path: Path, found: list[Path], what: str, remedy: str) -> Path | None:
    if len(found) > 1:
        names = ", ".join(each.name for each in found[:5])
        raise InvalidModel(f"{path}: expected one {what}, got {len(found)}: {names}; {remedy}")
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The headers of a model. `vision`: of its mmproj file `projector`; both None for a model of texts."""

    text: GgufFile
    projector: GgufFile | None = None
    vision: VisionPart | None = None

    @property
    def files(self) -> tuple[GgufFile, ...]:
        return (self.text,) if self.projector is None else (self.text, self.projector)


def read_gguf(path: Path, projector: Path | None = None, *, sees: bool = True) -> GgufModel:
    """Read the headers of a model, and check everything that can be checked without its tensors. Without `sees` the
    mmproj file `projector` is read only where the text decoder is no model by itself.

    Raises InvalidModel.
    """
    text = read_header(path)
    if text.integer(_PARTS, 1) > 1:
        raise text.wrong(_PARTS, "one file: join the parts with llama-gguf-split --merge", text.metadata[_PARTS])
    if projector is None or not (sees or needs_vision(text)):
        read_config(text)
        return GgufModel(text)
    file = read_header(projector)
    return GgufModel(text, file, read_vision(text, file))


class GgufFolders:
    """Folders `<cache_dir>/gguf/<name>-<digest of the header>-v<version>/`, each with the files that a Hugging Face
    folder has beside its weights. Thread-safe, and for several processes.
    """

    def __init__(self, cache_dir: Path) -> None:
        """`cache_dir` is absolute; it is created at the first use."""
        self._cache_dir = cache_dir
        self._root = cache_dir / "gguf"

    def folder_of(self, model: GgufModel) -> Path:
        """Return the folder of a model; make it at the first call. Raises InvalidModel where it cannot be written."""
        file = model.text
        digests = "-".join(each.digest for each in model.files)
        folder = self._root / f"{file.path.stem[:_LONGEST_NAME]}-{digests}-v{_VERSION}"
        if not folder.is_dir():
            files = {
                "config.json": orjson.dumps(read_config(file) if model.vision is None else model.vision.config),
                "generation_config.json": orjson.dumps(read_generation_config(file)),
                "tokenizer_config.json": orjson.dumps(read_tokenizer_config(file)),
                "tokenizer.json": read_tokenizer(file).to_str().encode(),
            }
            if model.vision is not None:
                settings = read_tokenizer_config(file) | {"extra_special_tokens": dict(model.vision.tokens)}
                files["tokenizer_config.json"] = orjson.dumps(settings)
                files["processor_config.json"] = orjson.dumps(model.vision.processor)
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
