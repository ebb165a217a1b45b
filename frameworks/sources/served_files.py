"""Select the files of a source that are served: safetensors, ONNX graphs, tokenizers, labels and JSON.

Never pickles or code. Names from a source are untrusted: only names that this module knows are selected.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from posixpath import basename, dirname

import orjson

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.sources.contract import Framework, RemoteFile

MAX_LISTED_FILES = 100_000
MAX_FILES = 1000
MAX_NAME_CHARACTERS = 512
MAX_MODULES = 16

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TEXT_FILES = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
    r"|preprocessor_config\.json|processor_config\.json|labels\.txt"
    r"|vocab\.txt|vocab\.json|merges\.txt|added_tokens\.json|chat_template\.json|modules\.json"
    r"|config_sentence_transformers\.json|sentence_[a-z]{1,32}_config\.json|[A-Za-z0-9_-]{1,64}\.jinja",
    re.ASCII,
)
MODULE_FOLDER = re.compile(r"[0-9]{1,3}_[A-Za-z0-9_]{1,64}", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,254}", re.ASCII)
# Follows the name of a graph in the names of the files with its tensors.
_DATA = re.compile(r"[._-](?:external[._-]?)?(?:data|weights?|bin)(?:[._-][0-9]{1,6})?", re.ASCII)
# PyTorch's exporter names external data by the tensor, one file for each.
_TENSOR = re.compile(r"onnx__[A-Za-z0-9_]+|[A-Za-z0-9_]+_attr__value|[A-Za-z0-9_.]+\.(?:weight|bias)", re.ASCII)
# Shown where a source has nothing to serve.
_WEIGHT_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack", ".gguf", ".safetensors", ".onnx")

_CONVERT = (
    "pickles are not served, convert them where you trust them, "
    "with AutoModel.from_pretrained(folder).save_pretrained(new_folder)"
)

ReadSmall = Callable[[RemoteFile], bytes]
"""Return the content of a small file of the source."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file to fetch. `name`: its path in the model's folder, with `/`: safe to join with the folder."""

    remote: RemoteFile
    name: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of one model, in the order of their names."""

    framework: Framework
    files: tuple[ServedFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(each.remote.size for each in self.files)


def select_files(
    address: SourceAddress, listed: Iterable[RemoteFile], framework: Framework | None, read: ReadSmall
) -> Selection:
    """Return the files to serve. `framework`: None chooses pytorch for safetensors, else onnx for a graph.

    `read` reads the index of sharded weights. Raises InvalidModel where no file can be served; the message names the
    weights.
    """
    files = _Files(address, listed)
    folder = dirname(address.path) if address.graph else address.path
    chosen = framework or _framework(address, files, folder)
    selected = _pytorch(address, files, folder, read) if chosen == "pytorch" else _onnx(address, files, folder)
    if len(selected) > MAX_FILES:
        raise InvalidModel(f"{address}: expected at most {MAX_FILES} files to serve, got {len(selected)}")
    return Selection(chosen, tuple(ServedFile(selected[name], name) for name in sorted(selected)))


def listed_framework(address: SourceAddress, listed: Iterable[RemoteFile]) -> Framework:
    """Return the framework that `select_files` chooses. Raises as it."""
    return _framework(address, _Files(address, listed), dirname(address.path) if address.graph else address.path)


class _Files:
    """The files of a source with safe names, by name and by folder."""

    def __init__(self, address: SourceAddress, listed: Iterable[RemoteFile]) -> None:
        """Raise InvalidModel for too many files, and for a name that is listed twice."""
        self.by_name: dict[str, RemoteFile] = {}
        self._by_folder: dict[str, dict[str, RemoteFile]] = {}
        for file in listed:
            if len(self.by_name) >= MAX_LISTED_FILES:
                raise InvalidModel(
                    f"{address}: expected at most {MAX_LISTED_FILES} files, got more; name a smaller folder"
                )
            if file.name in self.by_name:
                raise InvalidModel(f"{address}: expected each file once, got {file.name[:80]!r} twice")
            if _is_safe(file.name) and file.size >= 0:
                self.by_name[file.name] = file
                self._by_folder.setdefault(dirname(file.name), {})[basename(file.name)] = file

    def within(self, folder: str) -> dict[str, RemoteFile]:
        """Return the files of a folder, without those of folders below it."""
        return self._by_folder.get(folder, {})

    def modules(self, folder: str) -> list[str]:
        """Return the names of the folders of a sentence-transformers model's modules: `1_Pooling`, …."""
        if "modules.json" not in self.within(folder):
            return []
        names = sorted(basename(each) for each in self._by_folder if dirname(each) == folder)
        modules = [each for each in names if MODULE_FOLDER.fullmatch(each)]
        if len(modules) > MAX_MODULES:
            raise InvalidModel(
                f"{folder or 'modules.json'}: expected at most {MAX_MODULES} modules, got {len(modules)}"
            )
        return modules

    def found(self, folder: str) -> str:
        """Return the names of weights of any kind below a folder, for a message."""
        prefix = f"{folder}/" if folder else ""
        names = [name.removeprefix(prefix) for name in self.by_name if name.startswith(prefix)]
        weights = sorted(name for name in names if name.endswith(_WEIGHT_SUFFIXES))[:5]
        return ", ".join(name[:80] for name in weights) or (f"{len(names)} other files" if names else "no files")


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return (
        len(name) <= MAX_NAME_CHARACTERS
        and not any(part in ("", ".", "..") for part in parts)
        and name.isprintable()
        and "\\" not in name
    )


def _framework(address: SourceAddress, files: _Files, folder: str) -> Framework:
    folders = (folder, _join(folder, "0_Transformer"), _join(folder, "0_CLIPModel"))
    if not address.graph and any(_join(each, name) in files.by_name for each in folders for name in (WEIGHTS, INDEX)):
        return "pytorch"
    if any(name in files.by_name for name in _graphs(address, folder)):
        return "onnx"
    expected = address.graph or f"{WEIGHTS}, {INDEX}, model.onnx or onnx/model.onnx"
    raise InvalidModel(f"{address}: expected {expected}, got {files.found(folder)}; {_CONVERT}")


def _graphs(address: SourceAddress, folder: str) -> list[str]:
    """Return the names of the graph, in the order of preference."""
    return [address.graph] if address.graph else [_join(folder, "model.onnx"), _join(folder, "onnx/model.onnx")]


def _pytorch(address: SourceAddress, files: _Files, folder: str, read: ReadSmall) -> dict[str, RemoteFile]:
    if address.graph:
        raise InvalidModel(f"{address}: expected a folder with safetensors, got an .onnx file; serve it with onnx")
    selected = _text_files(files, folder)
    modules = files.modules(folder)
    weights: dict[str, RemoteFile] = {}
    for module in ("", *modules):
        weights |= _weights(address, files, folder, module, read)
    if not weights:
        found = files.found(folder)
        raise InvalidModel(f"{address}: expected {WEIGHTS} or {INDEX}, got {found}; {_CONVERT}")
    return selected | weights


def _weights(address: SourceAddress, files: _Files, folder: str, module: str, read: ReadSmall) -> dict[str, RemoteFile]:
    """Return the safetensors of one folder, as the loader chooses them: the single file, else the shards."""
    source = _join(folder, module)
    within = files.within(source)
    single, index = within.get(WEIGHTS), within.get(INDEX)
    if single is not None:
        return {_join(module, WEIGHTS): single}
    if index is None:
        return {}
    names = [INDEX, *_shards(address, read(index))]
    missing = [name for name in names if name not in within]
    if missing:
        raise InvalidModel(f"{address}: expected the shards of {INDEX}, got none of {', '.join(missing[:5])}")
    return {_join(module, name): within[name] for name in names}


def _shards(address: SourceAddress, index: bytes) -> list[str]:
    try:
        names = {str(name) for name in orjson.loads(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidModel(
            f"{address}: {INDEX}: expected weight_map, an object of file names; upload it again"
        ) from None
    for name in names:
        if not _PART.fullmatch(name) or not name.endswith(".safetensors"):
            raise InvalidModel(f"{address}: {INDEX}: expected .safetensors shards beside it, got {name[:80]!r}")
    return sorted(names)


def _onnx(address: SourceAddress, files: _Files, folder: str) -> dict[str, RemoteFile]:
    graph = next((name for name in _graphs(address, folder) if name in files.by_name), None)
    if graph is None:
        expected = address.graph or "model.onnx or onnx/model.onnx"
        raise InvalidModel(
            f"{address}: expected {expected}, got {files.found(folder)}; name one .onnx file in the address"
        )
    beside = dirname(graph)
    # The text files of the nearest folder: exporters put them beside the graph or into the folder above.
    folders = dict.fromkeys(("" if address.scheme == "hf" else dirname(beside), dirname(beside), folder, beside))
    selected: dict[str, RemoteFile] = {}
    for each in folders:
        selected |= _text_files(files, each)
    selected |= {name: file for name, file in files.within(beside).items() if _is_data(name, basename(graph))}
    return selected | {"model.onnx": files.by_name[graph]}


def _is_data(name: str, graph: str) -> bool:
    """Whether a file beside the graph may hold its tensors: `model.onnx_data`, `model.data`, `onnx__MatMul_7`, …."""
    rests = [name.removeprefix(each) for each in (graph, graph.removesuffix(".onnx"))]
    is_named = _TENSOR.fullmatch(name) is not None or any(_DATA.fullmatch(rest) for rest in rests)
    return is_named and _PART.fullmatch(name) is not None


def _text_files(files: _Files, folder: str) -> dict[str, RemoteFile]:
    """Return the configuration and tokenizer files of a folder and of its modules, by their names below it."""
    return {
        _join(module, name): file
        for module in ("", *files.modules(folder))
        for name, file in files.within(_join(folder, module)).items()
        if _TEXT_FILES.fullmatch(name)
    }


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name
