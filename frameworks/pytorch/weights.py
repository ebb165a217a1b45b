"""The weight files of a Hugging Face folder: safetensors, single or sharded; pickles where allowed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.text.pickled_tensors import PICKLE, read_pickled_tensors

_FLOATING_POINT = ("F", "BF")
_SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Contents of the headers. `dtype`: safetensors' name (`F32`, `BF16`, …) of most elements. `counts`: elements of
    each dtype. `others`: file and dtype of each tensor that is no floating point. `is_pickled`: not in safetensors.
    """

    files: tuple[Path, ...]
    file_bytes: int
    elements: int
    dtype: str
    names: frozenset[str]
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    others: Mapping[str, tuple[Path, str]] = field(default_factory=dict, hash=False)
    is_pickled: bool = False


def read_weight_files(folder: Path, allow_pickled: bool = False) -> WeightFiles:
    """Find the weights and read their headers, but not the tensors.

    `allow_pickled`: read `pytorch_model.bin` where there are no safetensors. Raises InvalidModel for absent weights,
    for other pickles, and for an inconsistent header or index.
    """
    if allow_pickled and (folder / PICKLE).is_file() and not _has_safetensors(folder):
        return _read_pickle(folder / PICKLE)
    files = _find(folder)
    names: set[str] = set()
    elements: Counter[str] = Counter()
    others: dict[str, tuple[Path, str]] = {}
    for file in files:
        try:
            with safe_open(str(file), framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - a safe_open handle is not a mapping
                    part = tensors.get_slice(name)
                    dtype = str(part.get_dtype())
                    elements[dtype] += prod(part.get_shape())
                    names.add(name)
                    if not dtype.startswith(_FLOATING_POINT):
                        others[name] = file, dtype
        except (SafetensorError, OSError, ValueError) as error:
            raise InvalidModel(
                f"{file}: not a readable safetensors file ({error}); check that the copy is complete"
            ) from error
    if not names:
        raise InvalidModel(f"{folder}: expected tensors in the safetensors files, got none")
    return WeightFiles(
        files=tuple(files),
        file_bytes=sum(file.stat().st_size for file in files),
        elements=elements.total(),
        dtype=elements.most_common(1)[0][0],
        names=frozenset(names),
        counts=dict(elements),
        others=others,
    )


def _find(folder: Path) -> list[Path]:
    if not folder.exists():
        raise InvalidModel(f"{folder}: no such folder")
    if folder.is_file():
        _refuse_pickle(folder)
        raise InvalidModel(
            f"{folder}: expected a folder with config.json, *.safetensors and tokenizer.json, got a file"
        )
    # In transformers' order of preference.
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _shards(index)
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise InvalidModel(f"{folder}: missing shards of the index: {', '.join(missing[:5])}")
        return shards
    for file in sorted(folder.iterdir()):
        _refuse_pickle(file)
    raise InvalidModel(f"{folder}: expected model.safetensors or model.safetensors.index.json, got neither")


def _has_safetensors(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


def _read_pickle(file: Path) -> WeightFiles:
    """Read the names, shapes and dtypes of a pickle of tensors. Their numbers stay in the file."""
    tensors = read_pickled_tensors(file)
    elements: Counter[str] = Counter()
    for tensor in tensors.values():
        elements[_SAFETENSORS_NAMES.get(tensor.dtype, str(tensor.dtype))] += tensor.numel()
    return WeightFiles(
        files=(file,),
        file_bytes=file.stat().st_size,
        elements=elements.total(),
        dtype=elements.most_common(1)[0][0],
        names=frozenset(tensors),
        counts=dict(elements),
        others={name: (file, str(each.dtype)) for name, each in tensors.items() if not each.is_floating_point()},
        is_pickled=True,
    )


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidModel(f"{index}: weight_map: expected an object, got none")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InvalidModel(f'{index}: expected .safetensors shards in the folder itself, got "{name}"')
    return [index.parent / name for name in names]


def _refuse_pickle(file: Path) -> None:
    if file.suffix in _PICKLES and file.name != "training_args.bin":
        raise InvalidModel(
            f"{file}: expected safetensors, got a pickle, which can run any code when it is read; "
            "convert it where you trust it, with AutoModel.from_pretrained(folder).save_pretrained(new_folder), or set "
            "allow_pickled_weights = true for an encoder of texts"
        )
