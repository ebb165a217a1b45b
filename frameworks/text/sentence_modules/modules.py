"""Read `modules.json` of sentence-transformers: the modules of a model, in their order, and their configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import parse_json, read_json
from memory.sizes import format_size

_MOST_MODULES = 100
# Of the classes whose file is not config.json.
_CONFIG_NAMES = {
    "CNN": "cnn_config.json",
    "LSTM": "lstm_config.json",
    "WordEmbeddings": "wordembedding_config.json",
}
_MAX_CONFIG_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a model. `kind`: its class name; the full name of a class that sentence-transformers does not have.

    `config`: of its `config_file`; empty where the folder has none.
    """

    kind: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def config_file(self) -> Path:
        return self.folder / _CONFIG_NAMES.get(self.kind, "config.json")

    def count(self, key: str, most: int, default: object = None) -> int:
        """Return a number of its configuration from 1 to `most`. Raises InvalidModel for another value."""
        value = self.config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise InvalidModel(
                f"{self.config_file}: {key}: expected 1 to {most}, got {str(value)[:100]}; correct the file"
            )
        return value


def read_modules(folder: Path) -> tuple[Module, ...]:
    """Return the modules of a folder, in order; empty where it has no `modules.json`. Raises InvalidModel."""
    file = folder / "modules.json"
    content = parse_json(file, absent=[])
    try:
        pairs = [(kind_of(str(module["type"])), str(module["path"])) for module in content]
    except (TypeError, KeyError) as error:
        raise InvalidModel(f"{file}: not a list of modules with type and path") from error
    if len(pairs) > _MOST_MODULES:
        raise InvalidModel(f"{file}: expected at most {_MOST_MODULES} modules, got {len(pairs)}")
    if any(Path(path).is_absolute() or ".." in Path(path).parts for _, path in pairs):
        raise InvalidModel(f"{file}: a module's path leaves the model's own folder")
    return tuple(read_module(kind, folder / path) for kind, path in pairs)


def read_module(kind: str, folder: Path) -> Module:
    """Return a module with its configuration. Raises InvalidModel."""
    module = Module(kind, folder)
    check_file_bytes(module.config_file)
    return replace(module, config=read_json(module.config_file))


def check_file_bytes(file: Path) -> None:
    """Raise InvalidModel for a JSON file, such as one of words, that is larger than any vocabulary."""
    size = file.stat().st_size if file.is_file() else 0
    if size > _MAX_CONFIG_BYTES:
        raise InvalidModel(
            f"{file}: expected at most {format_size(_MAX_CONFIG_BYTES)}, got {format_size(size)}; serve a smaller model"
        )


def kind_of(module_type: str) -> str:
    """Return the class name of a module of sentence-transformers; the full name of other modules."""
    return module_type.rsplit(".", 1)[-1] if module_type.startswith("sentence_transformers.") else module_type
