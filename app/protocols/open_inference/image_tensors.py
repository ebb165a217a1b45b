"""Read the inputs of models that read files: a BYTES tensor whose elements are files, or base64 in JSON."""

from math import prod
from struct import Struct

import numpy as np

from app.protocols.open_inference.datatypes import Raw
from app.protocols.shared.fields.images import check_num_images, decode_image
from frameworks.core.errors import InvalidInput
from frameworks.types import Array, ModelSpec

IMAGE_INPUT = "image"
FILE_INPUTS = frozenset({IMAGE_INPUT, "audio", "video"})

_LENGTH_BYTES = 4
_UNPACK_LENGTH = Struct("<I").unpack_from


def holds_files(name: str, datatype: object, spec: ModelSpec) -> bool:
    """Whether the elements of an input are files, not text in UTF-8."""
    if name not in FILE_INPUTS or datatype != "BYTES":
        return False
    return name in spec.pipeline.inputs if spec.pipeline is not None else name == IMAGE_INPUT and spec.image is not None


def decode_files(buffer: Raw, shape: tuple[int, ...], field: str) -> Array:
    """Decode a binary BYTES tensor of files: each is its length, as 32 bits, and its bytes. Raises InvalidInput."""
    view, end, at = memoryview(buffer), len(buffer), 0
    count = prod(shape)
    check_num_images(count, field)
    files: list[bytes] = []
    for index in range(count):
        start = at + _LENGTH_BYTES
        size = _UNPACK_LENGTH(view, at)[0] if start <= end else 0
        at = start + size
        if start > end or at > end:
            raise InvalidInput(field, f"expected {count} images, got {end} bytes that end within image {index}")
        files.append(bytes(view[start:at]))
    if at != end:
        raise InvalidInput(field, f"expected {at} bytes for {count} images, got {end}")
    return as_objects(files).reshape(shape)


def as_objects(files: list[bytes]) -> Array:
    """Return the files as a flat array of objects."""
    objects = np.empty(len(files), dtype=object)
    objects[:] = files
    return objects


def read_files(value: Array, name: str = IMAGE_INPUT) -> list[bytes]:
    """Return the files of the tensor `name`, of shape [n] or [n, 1]. Raises InvalidInput."""
    field = f"inputs.{name}"
    if not (value.ndim == 1 or (value.ndim == 2 and value.shape[1] == 1)):
        raise InvalidInput(field, f"expected shape [-1] or [-1, 1] (-1 is free), got {list(value.shape)}")
    check_num_images(value.size, field)
    flat = value.reshape(-1).tolist()
    files = [
        each if isinstance(each, bytes) else decode_image(each, f"{field}.data[{index}]")
        for index, each in enumerate(flat)
    ]
    if b"" in files:
        raise InvalidInput(f"{field}.data[{files.index(b'')}]", "expected a file, got an empty one")
    return files
