"""Read JSON files of a model's folder, bound its weights, and name files by their content."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from frameworks.core.errors import InvalidModel
from memory.sizes import format_size

_GRAPH_FOLDER = "onnx"
"""The folder of the graphs in a repository of a hub, beside the weights of PyTorch."""
_DESCRIPTIONS = ("config.json", "tokenizer.json", "preprocessor_config.json")

_GGUF = ".gguf"

_DIGEST_BYTES = 16
# An unchanged file is not read again at a reload; a large model has gigabytes.
_known: dict[tuple[str, int, int, int], str] = {}
_MOST_KNOWN = 1000


def find_graph(folder: Path) -> Path | None:
    """Return `model.onnx` of a folder, else `onnx/model.onnx`; None where it has neither."""
    for graph in (folder / "model.onnx", folder / _GRAPH_FOLDER / "model.onnx"):
        if os.path.isfile(graph):
            return graph
    return None


def description_folder(graph: Path) -> Path:
    """Return the folder of the tokenizer, the configuration and the image processor of a graph.

    It is that of the graph. In the layout of hubs, `onnx/model.onnx`, it is the one above, unless they are beside it.
    """
    folder = graph.parent
    is_beside = any((folder / name).is_file() for name in _DESCRIPTIONS)
    return folder.parent if folder.name == _GRAPH_FOLDER and not is_beside else folder


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} where the file is absent. Raises InvalidModel for any other content."""
    content = parse_json(file, absent={})
    if not isinstance(content, dict):
        raise InvalidModel(f"{file}: not a JSON object; is the file whole?")
    return content


def parse_json(file: Path, absent: object) -> Any:
    """Return the value in a JSON file, `absent` where there is no such file. Raises InvalidModel."""
    try:
        return orjson.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return absent
    except OSError as error:
        raise InvalidModel(f"{file}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidModel(f"{file}: not valid JSON ({error}); is the file whole?") from error


def check_weight_bytes(path: Path, weight_bytes: int, max_bytes: int | None) -> None:
    """Raise InvalidModel if the weights are larger than `models.max_model_size`. None: no limit."""
    if max_bytes is not None and weight_bytes > max_bytes:
        raise InvalidModel(
            f"{path}: expected at most models.max_model_size = {format_size(max_bytes)} of weights, "
            f"got {format_size(weight_bytes)}; raise it or serve a smaller model"
        )


def contents_name(files: Iterable[Path], made_by: str) -> str:
    """Return 32 hexadecimal digits that depend on the bytes and the order of the files, and on `made_by`.

    Raises OSError where a file cannot be read.
    """
    whole = hashlib.blake2b(made_by.encode(), digest_size=_DIGEST_BYTES)
    for file in files:
        whole.update(b"\0" + file_digest(file).encode())
    return whole.hexdigest()


def file_digest(file: Path) -> str:
    """Return the BLAKE2b of a file's bytes, cached while its size, modification time and inode stay the same.

    The time is read before the bytes: a file that changes meanwhile is read again the next time. Raises OSError.
    """
    state = os.stat(file)
    key = (str(file), state.st_size, state.st_mtime_ns, state.st_ino)
    if key not in _known:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = digest
    return _known[key]


def refuse_settings(file: Path, content: Mapping[str, Any], served: Mapping[str, tuple[object, ...]]) -> None:
    """Raise InvalidModel, which names the key, for a setting that would be ignored.

    `served`: by key, the values that have no effect, or the effect that is computed anyway. Null has none.
    """
    for key, values in served.items():
        value = content.get(key)
        if value is not None and not any(value == each and type(value) is type(each) for each in values):
            expected = " or ".join(json.dumps(each) for each in values) or "nothing"
            raise InvalidModel(
                f"{file}: {key}: expected {expected}, got {str(value)[:100]}; this setting is not served"
            )


def refuse_unknown(file: Path, content: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidModel for a key whose effect is not known."""
    unknown = next((key for key in content if key not in known), None)
    if unknown is not None:
        raise InvalidModel(
            f"{file}: {str(unknown)[:100]}: expected a known key, got another; this setting is not served"
        )


def is_gguf(path: Path) -> bool:
    """Return whether a file is named as a language model in GGUF, and not as the vision part of one (mmproj)."""
    return path.suffix.lower() == _GGUF and not is_projector(path)


def is_projector(path: Path) -> bool:
    """Return whether a file is named as the vision part of a language model in GGUF."""
    return path.suffix.lower() == _GGUF and "mmproj" in path.name.lower()
