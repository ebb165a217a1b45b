"""Read the header of a GGUF file: its metadata, and where each tensor is.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the layouts of blocks: ggml-common.h of
https://github.com/ggml-org/llama.cpp. Every count and size of the header is compared with the bytes that the file has,
before memory is used for it.
"""

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidModel


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type. `elements` and `size_bytes`: of a block, one element for plain types. Of others `bits` and `group`: the
    width in which we hold them, and how many neighbours share a scale; 5 and 6 bits are held in 8.
    """

    name: str
    elements: int
    size_bytes: int
    bits: int = 0
    group: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the elements are floats."""
        return not self.bits


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18, 4, 32),
    3: BlockType("Q4_1", 32, 20, 4, 32),
    6: BlockType("Q5_0", 32, 22, 8, 32),
    7: BlockType("Q5_1", 32, 24, 8, 32),
    8: BlockType("Q8_0", 32, 34, 8, 32),
    12: BlockType("Q4_K", 256, 144, 4, 32),
    13: BlockType("Q5_K", 256, 176, 8, 32),
    14: BlockType("Q6_K", 256, 210, 8, 16),
}
"""By the ids of ggml."""


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
# Far above the largest models: a file of zeros could otherwise fill the memory with empty strings.
_MOST_ELEMENTS = 1 << 24
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 20
# A key or a tensor takes at least its name's length and a type.
_LEAST_ENTRY_BYTES = 12
_CUT = "is the copy complete?"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file. `shape`: in torch's order. `start`: its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a file. `metadata`: scalars, strings, lists of strings and numeric arrays. `digest`: 32
    hexadecimal digits of the header's bytes.
    """

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]
    digest: str
    size_bytes: int

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a string of the metadata. Raises InvalidModel for another type."""
        value = self.metadata.get(key, default)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer of the metadata. Raises InvalidModel for another type, or without key and default."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, "an integer of at least 0", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """As `integer`, for any finite number."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self.wrong(key, "a number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean of the metadata. Raises InvalidModel for another type."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings; empty where the key is absent. Raises InvalidModel for another type."""
        value = self.metadata.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "a list of strings", value)
        return value

    def numbers(self, key: str) -> list[float] | None:
        """Return a list of scalars; None where the key is absent. Raises InvalidModel for another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray):
            raise self.wrong(key, "a list of numbers", value)
        found: list[float] = value.tolist()
        return found

    def wrong(self, key: str, expected: str, value: object) -> InvalidModel:
        """Return the error for a key of the metadata."""
        got = "none" if value is None else f"{str(value)[:100]}"
        return InvalidModel(f"{self.path}: {key}: expected {expected}, got {got}; convert the model again")


def read_header(path: Path) -> GgufFile:
    """Read the header of a file, none of its tensors.

    Raises InvalidModel for what is no GGUF file of version 2 or 3, for a file that is shorter than its header says, and
    for types of tensors that are not served.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _read(path, content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModel(f"{path}: expected a GGUF file, got one that cannot be read: {reason}; {_CUT}") from error


def _read(path: Path, content: mmap.mmap) -> GgufFile:
    reader = _HeaderReader(path, content)
    magic = reader.take(4)
    if magic != _MAGIC:
        raise InvalidModel(f"{path}: expected a GGUF file, got one that begins with {magic!r}; {_CUT}")
    version = reader.number("<I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in _VERSIONS
        hint = "it is for big-endian machines" if swapped else "convert the model again"
        raise InvalidModel(f"{path}: expected version 2 or 3 of GGUF, got {version}; {hint}")
    num_tensors = reader.count("the number of tensors", _LEAST_ENTRY_BYTES, _MOST_TENSORS)
    num_keys = reader.count("the number of metadata keys", _LEAST_ENTRY_BYTES, _MOST_KEYS)
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = reader.string()
        if key in metadata:
            raise InvalidModel(f"{path}: {key}: expected once, got it twice; convert the model again")
        metadata[key] = reader.value(int(reader.number("<I")), key)
    entries = [_tensor_entry(reader) for _ in range(num_tensors)]
    alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > reader.size:
        raise InvalidModel(f"{path}: {_ALIGNMENT}: expected a power of two, got {alignment}; convert the model again")
    first = -(-reader.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, offset in entries:
        tensor = _tensor(path, name, shape, type_id, first + offset)
        if tensor.start + tensor.size_bytes > reader.size:
            raise InvalidModel(
                f"{path}: tensor {name}: expected {tensor.size_bytes} bytes from byte {tensor.start}, got a file of "
                f"{reader.size} bytes; {_CUT}"
            )
        if name in tensors:
            raise InvalidModel(f"{path}: tensor {name}: expected once, got it twice; convert the model again")
        tensors[name] = tensor
    digest = hashlib.blake2b(content[: reader.position], digest_size=16).hexdigest()
    return GgufFile(path, metadata, tensors, digest, reader.size)


def _tensor_entry(reader: "_HeaderReader") -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape in torch's order, type and offset."""
    name = reader.string()
    num_dimensions = int(reader.number("<I"))
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
        raise InvalidModel(
            f"{reader.path}: tensor {name[:100]}: expected 1 to {_MOST_DIMENSIONS} dimensions, got {num_dimensions}"
        )
    sizes = [int(reader.number("<Q")) for _ in range(num_dimensions)]
    return name, tuple(reversed(sizes)), int(reader.number("<I")), int(reader.number("<Q"))


def _tensor(path: Path, name: str, shape: tuple[int, ...], type_id: int, start: int) -> GgufTensor:
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None:
        served = ", ".join(each.name for each in BLOCK_TYPES.values())
        raise InvalidModel(
            f"{path}: tensor {name}: expected a type of {served}, got type {type_id} of ggml, which is not served; "
            "use a file with another quantization, like Q4_K_M or Q8_0"
        )
    if not prod(shape) or shape[-1] % block_type.elements:
        raise InvalidModel(
            f"{path}: tensor {name}: expected rows of a multiple of {block_type.elements} elements for "
            f"{block_type.name}, got the shape {list(shape)}; convert the model again"
        )
    return GgufTensor(name, shape, block_type, start, prod(shape) // block_type.elements * block_type.size_bytes)


class _HeaderReader:
    """Reads the header in order, and nothing beyond the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.size = len(content)
        self.position = 0
        self._content = content

    def take(self, length: int) -> bytes:
        """Return the next bytes. Raises InvalidModel where the file ends before."""
        self._check(length)
        taken = self._content[self.position : self.position + length]
        self.position += length
        return taken

    def number(self, form: str) -> int | float | bool:
        """Return the next number. `form`: of `struct`."""
        [value] = struct.unpack(form, self.take(struct.calcsize(form)))
        found: int | float | bool = value
        return found

    def count(self, what: str, element_bytes: int, most: int) -> int:
        """Return the next count, of elements that take at least `element_bytes` each."""
        count = int(self.number("<Q"))
        if count > most or count * element_bytes > self.size - self.position:
            raise InvalidModel(
                f"{self.path}: {what}: expected at most {min(most, (self.size - self.position) // element_bytes)} in a "
                f"file of {self.size} bytes, got {count}; {_CUT}"
            )
        return count

    def string(self) -> str:
        length = int(self.number("<Q"))
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise InvalidModel(
                f"{self.path}: expected a text in UTF-8 before byte {self.position}, got {error}"
            ) from error

    def value(self, type_id: int, key: str) -> object:
        if type_id == _STRING:
            return self.string()
        if type_id in _NUMBERS:
            return self.number(_NUMBERS[type_id])
        if type_id == _ARRAY:
            return self._array(int(self.number("<I")), key)
        raise InvalidModel(f"{self.path}: {key[:100]}: expected a type from 0 to 12, got {type_id}; {_CUT}")

    def _array(self, type_id: int, key: str) -> list[str] | np.ndarray[tuple[int], np.dtype[np.generic]]:
        if type_id == _STRING:
            return [self.string() for _ in range(self.count(key, 8, _MOST_ELEMENTS))]
        if type_id not in _NUMBERS:
            raise InvalidModel(f"{self.path}: {key[:100]}: expected a list of texts or numbers, got type {type_id}")
        dtype = np.dtype(_NUMBERS[type_id])
        count = self.count(key, dtype.itemsize, _MOST_ELEMENTS)
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _check(self, length: int) -> None:
        if length > self.size - self.position:
            raise InvalidModel(
                f"{self.path}: expected {length} bytes from byte {self.position}, got a file of {self.size} bytes; "
                f"{_CUT}"
            )
