"""Validate values of settings that pydantic's types do not describe."""

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationInfo

from frameworks.core.addresses import Scheme, SourceAddress, is_address, parse_address, parse_prefix

_MAX_WARM_UPS = 16
_MAX_REPLICAS = 1024


def cache_folder() -> Path:
    """Return the folder of this user for caches, by the rules of the system; `./models` without a home."""
    try:
        home = Path.home()
    except RuntimeError:
        return Path("./models")
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "roundhouse"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "roundhouse" / "Cache"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification ignores relative paths.
    return (Path(chosen) if os.path.isabs(chosen) else home / ".cache") / "roundhouse"


def checked_path(value: object) -> Path:
    """Return a path. Raises ValueError."""
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("expected the path of a file or folder")
    return Path(value)


def checked_model_path(value: object) -> Path | SourceAddress:
    """Return the path or address of a model. Raises ValueError."""
    if isinstance(value, SourceAddress):
        return value
    if isinstance(value, str) and is_address(value):
        return parse_address(value)
    return checked_path(value)


def checked_source(value: object) -> SourceAddress | Scheme:
    """Return an item of `models.sources`. Raises ValueError."""
    if isinstance(value, SourceAddress):
        return value
    if not isinstance(value, str):
        raise ValueError("expected an address or its beginning, like hf://org or s3://bucket/folder")
    return parse_prefix(value)


def as_address(prefix: SourceAddress | Scheme) -> str:
    """Return an item of `models.sources` as it is written in the file."""
    return str(prefix) if isinstance(prefix, SourceAddress) else f"{prefix}://"


def beside_local_path(value: Any, info: ValidationInfo) -> Any:
    """Return the value of a key that only a model with a local path may have. Raises ValueError.

    `None`, `False` and the names of policies have no effect on the files and are accepted.
    """
    if value not in (None, False, "latest", "all") and isinstance(info.data.get("path"), SourceAddress):
        raise ValueError("expected a local path beside it, got an address; remove this key or download the model")
    return value


def checked_quantized(value: object) -> object:
    """Return the value of `quantized`. Raises ValueError."""
    if not isinstance(value, bool) and value != "mixed":
        raise ValueError('expected true, false or "mixed"')
    return value


class ReplicaRange(NamedTuple):
    """Bounds of the number of replicas."""

    min: int
    max: int


def checked_replicas(value: object) -> int | ReplicaRange:
    """Return the value of `replicas`. Raises ValueError."""
    if type(value) is int and 1 <= value <= _MAX_REPLICAS:
        return value
    if isinstance(value, ReplicaRange):
        return value
    if isinstance(value, Mapping) and value.keys() == {"min", "max"}:
        low, high = value["min"], value["max"]
        if type(low) is int and type(high) is int and 0 <= low <= high <= _MAX_REPLICAS and high:
            return ReplicaRange(low, high)
    raise ValueError(f"expected an integer from 1 to {_MAX_REPLICAS}, or {{ min = 0, max = 4 }}")


def as_replicas(value: int | ReplicaRange) -> int | dict[str, int]:
    """Return the value of `replicas` as it is written in an entry."""
    return value if isinstance(value, int) else value._asdict()


def checked_pad_values(value: object) -> tuple[tuple[str, float], ...]:
    """Return the pairs of `pad_values`. Raises ValueError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("expected a table of input names and numbers, like { input_ids = 0 }")
    for name, number in value.items():
        if type(number) is not int and not (type(number) is float and math.isfinite(number)):
            raise ValueError(f'expected a number for "{name}"')
    return tuple(value.items())


def as_tables(runs: "tuple[tuple[tuple[str, GivenTensor], ...], ...]") -> list[dict[str, Any]]:
    """Return the values of `warm_up` as they are written in an entry."""
    return [
        {name: data if shape is None else {"data": data, "shape": shape} for name, (data, shape) in run} for run in runs
    ]


class GivenTensor(NamedTuple):
    """A tensor of a model's entry. `data`: nested tuples, or flat for a `shape`; None: the shape of the nesting."""

    data: Any
    shape: tuple[int, ...] | None = None


def checked_warm_up(value: object) -> tuple[tuple[tuple[str, GivenTensor], ...], ...]:
    """Return the runs of `warm_up`. Raises ValueError."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MAX_WARM_UPS:
        raise ValueError(f"expected 1 to {_MAX_WARM_UPS} tables of input names and values, one for each run")
    for run in value:
        if not isinstance(run, Mapping) or not run or not all(isinstance(name, str) for name in run):
            raise ValueError("expected tables of input names and values, like { shape = [2, 3] }")
    return tuple(tuple((name, _given_tensor(name, each)) for name, each in run.items()) for run in value)


def _given_tensor(name: str, value: object) -> GivenTensor:
    if not isinstance(value, Mapping):
        return GivenTensor(_nested(name, value))
    shape = value.get("shape")
    is_shape = isinstance(shape, list | tuple) and all(type(size) is int and size >= 0 for size in shape)
    if value.keys() != {"data", "shape"} or not is_shape:
        raise ValueError(f'expected data and shape (a list of sizes) in the table of "{name[:128]}"')
    return GivenTensor(_nested(name, value["data"]), tuple(shape or ()))


def _nested(name: str, value: object) -> Any:
    """Return lists as tuples. Raises ValueError for anything but numbers, booleans and strings in them."""
    if isinstance(value, list | tuple):
        return tuple(_nested(name, item) for item in value)
    if type(value) not in (int, float, bool, str):
        raise ValueError(f'expected numbers, booleans or strings, flat or nested, for "{name[:128]}"')
    return value


def checked_npz_name(value: Any) -> Any:
    """Return the name of a file of input values. Raises ValueError."""
    path = Path(value)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".npz" or "\0" in str(value):
        raise ValueError("expected a .npz file in the folder of the model's graph, by its relative path")
    return value
