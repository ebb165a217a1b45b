"""Read the files of a model before it is loaded: a Hugging Face folder, or a GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.pytorch.weights import WeightFiles, read_weight_files
from frameworks.text.config import transformer_folder
from frameworks.text.gguf.folder import GgufFolders, GgufModel, find_gguf, find_projector, read_gguf
from frameworks.text.sentence_modules.modules import read_modules
from frameworks.text.sentence_modules.router import Side

_KEYS = ("quantization_config", "compression_config")
_FLOAT8_METHODS = ("fp8", "fbgemm_fp8", "modelopt")
_METHODS = ("gptq", "awq", "compressed-tensors", *_FLOAT8_METHODS)
_BITS = (4, 8)
_ROW_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_COLUMN_FORMATS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}


def read_scheme(folder: Path) -> dict[str, Any] | None:
    """Return the quantization that config.json states, if it is one of those served; None for plain weights and for
    schemes of which transformers knows more.

    Raises InvalidModel for a variant that is not served.
    """
    file = folder / "config.json"
    config = read_json(file)
    found: dict[str, Any] | None = next((config[key] for key in _KEYS if isinstance(config.get(key), dict)), None)
    method = None if found is None else found.get("quant_method")
    if found is None or method not in _METHODS:
        return None
    if method == "compressed-tensors":
        form = found.get("format")
        if form not in _ROW_FORMATS:
            raise InvalidModel(
                f"{file}: format: expected one of {', '.join(_ROW_FORMATS)}, got {form}; use another copy"
            )
        return found | {"weight_block_size": _block_of(_stated_weights(found).get("block_structure"), file)}
    if method in _FLOAT8_METHODS:
        _check_float8(found, file)
        return found
    form = str(found.get("checkpoint_format" if method == "gptq" else "version") or _COLUMN_FORMATS[method][0]).lower()
    bits = found.get("bits")
    if form not in _COLUMN_FORMATS[method]:
        wanted = " or ".join(_COLUMN_FORMATS[method])
        raise InvalidModel(f"{file}: {method}: expected the layout {wanted}, got {form}; use another copy")
    if bits not in _BITS or (method == "awq" and bits != _BITS[0]):
        raise InvalidModel(
            f"{file}: bits: expected 4{' or 8' if method == 'gptq' else ''}, got {bits}; use another copy"
        )
    return found


def _stated_weights(scheme: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what compressed-tensors states of the weights of its first group."""
    groups = scheme.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return weights if isinstance(weights, dict) else {}


def _block_of(stated: object, file: Path) -> list[int] | None:
    """Check the outputs and inputs of a block of float8 weights with one scale; None: rows have them.

    Raises InvalidModel.
    """
    if stated is None or (isinstance(stated, list) and len(stated) == 2 and all(_is_count(each) for each in stated)):
        return stated
    raise InvalidModel(f"{file}: weight_block_size: expected two integers above 0, got {stated}; use another copy")


def _is_count(stated: object) -> bool:
    return type(stated) is int and stated > 0


def _check_float8(scheme: Mapping[str, Any], file: Path) -> None:
    """Raise InvalidModel for weights that are not float8 in e4m3."""
    _block_of(scheme.get("weight_block_size"), file)
    algorithm = scheme.get("quant_algo", "FP8") if scheme["quant_method"] == "modelopt" else "FP8"
    if algorithm != "FP8":
        raise InvalidModel(f"{file}: quant_algo: expected FP8, got {algorithm}; use another copy")
    for key, wanted in (("fmt", "e4m3"), ("expert_dtype", "fp8")):
        found = scheme.get(key, wanted)
        if found != wanted:
            raise InvalidModel(f"{file}: {key}: expected {wanted}, got {found}; use another copy")


def stated_bits(scheme: Mapping[str, Any]) -> int:
    """Return the bits of most weights: 4 or 8."""
    found = _stated_weights(scheme).get("num_bits", scheme.get("bits"))
    return found if found in _BITS else _BITS[0]


if TYPE_CHECKING:
    from frameworks.pytorch.generation.weights.packed.weight import WeightSource

# A scale and a shift of a group.
_GROUP_BYTES = 8
_USUAL_GROUP = 32
_FLOAT8 = "F8_"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """Weights that their files hold in few bits. `elements`: how many. `held_bytes`: which they take where they keep
    their bits. `float_elements`: those that a CPU widens. `gguf`: the headers of GGUF files; None: `scheme` is the
    quantization of a folder.
    """

    elements: int
    held_bytes: int
    gguf: GgufModel | None = None
    scheme: dict[str, Any] | None = None
    float_elements: int = 0

    def source(self, folder: Path, files: tuple[Path, ...], enable_memory_mapping: bool) -> "WeightSource":
        """Return the weights. Raises InvalidModel."""
        from frameworks.pytorch.generation.weights.packed.folder_weights import FolderWeights
        from frameworks.pytorch.generation.weights.packed.gguf_weights import model_weights

        if self.gguf is not None:
            return model_weights(self.gguf, enable_memory_mapping)
        assert self.scheme is not None
        return FolderWeights(folder, files, self.scheme)


def read_files(
    path: Path, folders: GgufFolders, allow_pickled: bool = False, side: Side | None = None, *, sees: bool = True
) -> tuple[Path, WeightFiles, PackedFiles | None]:
    """Return the folder of a model's config.json, its weight files, and what is packed in them.

    Reads headers only, and checks them. `allow_pickled`: as of `read_weight_files`. `side`: of a model with sides.
    `sees`: False: an mmproj file beside a GGUF file is not read.
    Raises InvalidModel.
    """
    file = find_gguf(path) if side is None else None
    if file is not None:
        gguf = read_gguf(file, find_projector(path), sees=sees)
        return folders.folder_of(gguf), _weights(gguf), _packed(gguf)
    modules = read_modules(path) if side is None else side.modules
    folder = transformer_folder(path) if side is None else modules[0].folder
    if modules and modules[0].kind == "BoW":
        # Its weights are numbers of its configuration.
        return folder, WeightFiles((), 0, 0, "F32", frozenset()), None
    weights, scheme = read_weight_files(folder, allow_pickled), read_scheme(folder)
    return (folder, weights, None) if scheme is None else (folder, *_of_folder(weights, scheme))


def _of_folder(weights: WeightFiles, scheme: dict[str, Any]) -> tuple[WeightFiles, PackedFiles]:
    """Divide the weights of a folder into plain and packed ones. Scales and zero points are counted roughly."""
    integers, bytes_ = weights.counts.get("I32", 0), weights.counts.get("I8", 0)
    floats = sum(count for name, count in weights.counts.items() if name.startswith(_FLOAT8))
    plain = {
        name: count
        for name, count in weights.counts.items()
        if name.startswith(("F", "BF")) and not name.startswith(_FLOAT8)
    }
    elements = integers * 32 // stated_bits(scheme) + bytes_ + floats
    held = integers * 4 + bytes_ + floats + elements // _USUAL_GROUP * _GROUP_BYTES
    dtype = max(plain, key=lambda name: plain[name], default="F16")
    return replace(weights, elements=sum(plain.values()), dtype=dtype), PackedFiles(
        elements, held, scheme=scheme, float_elements=floats
    )


def _weights(gguf: GgufModel) -> WeightFiles:
    """Return the plain tensors."""
    elements: dict[str, int] = {}
    tensors = [tensor for file in gguf.files for tensor in file.tensors.values()]
    for tensor in tensors:
        if tensor.block_type.is_plain:
            elements[tensor.block_type.name] = elements.get(tensor.block_type.name, 0) + prod(tensor.shape)
    return WeightFiles(
        files=tuple(file.path for file in gguf.files),
        file_bytes=sum(file.size_bytes for file in gguf.files),
        elements=sum(elements.values()),
        dtype=max(elements, key=lambda name: elements[name]),
        names=frozenset(tensor.name for tensor in tensors),
    )


def _packed(gguf: GgufModel) -> PackedFiles:
    tensors = (tensor for file in gguf.files for tensor in file.tensors.values())
    packed = [tensor for tensor in tensors if not tensor.block_type.is_plain]
    sizes = [(prod(tensor.shape), tensor.block_type) for tensor in packed]
    held = sum(count * kind.bits // 8 + count // kind.group * _GROUP_BYTES for count, kind in sizes)
    return PackedFiles(sum(count for count, _ in sizes), held, gguf)
