"""Read the files of an adapter: headers for checks and estimates, tensors for a load. Never a pickle."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import structlog
import torch
from safetensors import SafetensorError, safe_open

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.decoders.adapters.config import LoraConfig, read_config

log = structlog.get_logger(__name__)

WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
# As safetensors names them.
_DTYPES = ("F32", "F16", "BF16", "F64")
# Files of a tokenizer that an adapter's folder may repeat.
_TEXT_FILES = ("tokenizer.json", "chat_template.jinja", "chat_template.json")
_MAX_TEXT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The headers of an adapter. `shapes`: of A [rank, inputs] and B [outputs, rank] of each module of the base."""

    folder: Path
    config: LoraConfig
    shapes: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]

    @property
    def elements(self) -> int:
        """The number of weights."""
        return sum(prod(shape) for pair in self.shapes.values() for shape in pair)

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(a[0] for a, _ in self.shapes.values())


def read_adapter(folder: Path) -> AdapterFiles:
    """Read the config and the header of the weights, and check the one against the other. Raises InvalidModel."""
    config = read_config(folder)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise InvalidModel(
            f"{folder}: expected {WEIGHTS_FILE}, got none; pickles are never read, so save the adapter with "
            "save_pretrained(folder, safe_serialization=True)"
        )
    found: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(str(file), framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - a safe_open handle is not a mapping
                header = tensors.get_slice(name)
                if header.get_dtype() not in _DTYPES:
                    raise InvalidModel(
                        f"{file}: {name}: expected the dtype {', '.join(_DTYPES)}, got {header.get_dtype()}; "
                        "save the adapter as floating point"
                    )
                found[name] = tuple(header.get_shape())
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidModel(
            f"{file}: not a readable safetensors file ({error}); check that the copy is complete"
        ) from error
    shapes = _pairs(file, found)
    for module, (a, b) in shapes.items():
        rank = config.rank_of(module)
        if a[0] != rank or b[1] != rank:
            raise InvalidModel(
                f"{file}: {module}: expected the rank {rank} of {config.file.name}, got A {list(a)} and B {list(b)}"
            )
    return AdapterFiles(folder, config, shapes)


def read_tensors(files: AdapterFiles) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return A [rank, inputs] and B [outputs, rank] of each module, as the file has them, on the CPU.

    Raises InvalidModel.
    """
    file = files.folder / WEIGHTS_FILE
    read: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    try:
        with safe_open(str(file), framework="pt") as tensors:
            for module, shapes in files.shapes.items():
                pair = (tensors.get_tensor(_PREFIX + module + _A), tensors.get_tensor(_PREFIX + module + _B))
                if tuple(tuple(each.shape) for each in pair) != shapes:
                    raise InvalidModel(f"{file}: {module}: the file has changed while it was read; load it again")
                read[module] = pair
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidModel(f"{file}: not a readable safetensors file ({error})") from error
    return read


def warn_of_text_files(name: str, folder: Path, base: Path) -> None:
    """Log each tokenizer or chat template of an adapter that differs from the base's; it is not used."""
    for file in _TEXT_FILES:
        try:
            own = folder / file
            if own.is_file() and not _is_equal(own, base / file):
                log.warning("file of an adapter is ignored, as that of its base is used", adapter=name, file=file)
        except OSError as error:
            log.warning("file of an adapter cannot be read", adapter=name, file=file, error=str(error))


def _is_equal(own: Path, other: Path) -> bool:
    size = own.stat().st_size
    if not other.is_file() or other.stat().st_size != size or size > _MAX_TEXT_BYTES:
        return False
    return own.read_bytes() == other.read_bytes()


def _pairs(file: Path, found: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Return the shapes of A and B by module. Raises InvalidModel for any other tensor."""
    sides: dict[str, dict[str, tuple[int, int]]] = {}
    for name, shape in found.items():
        side = next((each for each in (_A, _B) if name.endswith(each)), None)
        if side is None or not name.startswith(_PREFIX) or len(shape) != 2:
            raise InvalidModel(
                f"{file}: expected tensors like {_PREFIX}…{_A} of two dimensions, got {name[:200]} {list(shape)}; such "
                "adapters are not served"
            )
        sides.setdefault(name[len(_PREFIX) : -len(side)], {})[side] = (shape[0], shape[1])
    if not sides:
        raise InvalidModel(f"{file}: expected tensors, got none")
    for module, pair in sides.items():
        if len(pair) < 2:
            raise InvalidModel(f"{file}: {module}: expected lora_A and lora_B, got one of them; is the file whole?")
    return {module: (pair[_A], pair[_B]) for module, pair in sides.items()}
