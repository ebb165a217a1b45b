"""Read the inputs that a model's entry gives for its warm-up: `input_values` or `warm_up`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from frameworks.core.errors import InvalidModel, similar_names
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.values import GivenTensor
from frameworks.types import NUMPY_DTYPES, Array, TensorType, Value, ValueSpec
from memory.sizes import format_size

MAX_VALUES_BYTES = 256 * 1024**2
_MAX_TENSORS = 1024


def read_given_values(
    entry: OnnxModelEntry, graph: Path, inputs: Mapping[str, ValueSpec]
) -> tuple[dict[str, Value], ...]:
    """Return the inputs of each run that the entry gives; none without such a key.

    Raises InvalidModel for a file that cannot be read, and for values that are not as the graph declares.
    """
    if entry.input_values is not None:
        key = f"{graph}: input_values"
        read = _read_file(graph.parent, entry.input_values, key)
        return ({name: _checked(name, array, inputs, key) for name, array in read.items()},)
    key = f"{graph}: warm_up"
    return tuple(
        {name: _checked(name, _to_array(name, tensor, inputs, key), inputs, key) for name, tensor in run}
        for run in entry.warm_up or ()
    )


def _read_file(folder: Path, name: str, key: str) -> dict[str, Array]:
    """Read the arrays of a .npz file, without pickled objects."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise InvalidModel(f'{key}: expected a file in the folder of the graph, got "{name}"; move it there')
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > MAX_VALUES_BYTES or len(members) > _MAX_TENSORS:
                raise InvalidModel(
                    f"{key}: expected at most {format_size(MAX_VALUES_BYTES)} in {_MAX_TENSORS} tensors, got "
                    f"{format_size(size)} in {len(members)}; give fewer rows"
                )
            arrays = {}
            for member in members:
                with archive.open(member) as content:
                    arrays[member.filename.removesuffix(".npy")] = _read_array(content, member.file_size)
            return arrays
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InvalidModel(f'{key}: expected a .npz file of numpy.savez, got "{name}" ({error})') from None


def _read_array(content: IO[bytes], size: int) -> Array:
    """Read one array of at most `size` bytes. Raises ValueError."""
    version = np.lib.format.read_magic(content)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(content)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(content)
    else:
        raise ValueError("a newer format of arrays")
    if dtype.hasobject:
        raise ValueError("pickled objects; save texts as numpy strings")
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize > size - content.tell():
        raise ValueError("an array is longer than its file")
    array = (
        np.frombuffer(content.read(count * dtype.itemsize), dtype, count)
        if count * dtype.itemsize
        else np.empty(0, dtype)
    )
    return array.reshape(shape, order="F" if is_fortran else "C")


def _to_array(name: str, tensor: GivenTensor, inputs: Mapping[str, ValueSpec], key: str) -> Array:
    """Return a tensor of the entry in the declared dtype, if it has one that suits."""
    try:
        array = np.array(tensor.data)
    except (ValueError, OverflowError):
        raise InvalidModel(f"{key}.{name}: expected rows of equal length, got a ragged array; correct it") from None
    if tensor.shape is not None:
        filled = int(np.prod(tensor.shape, dtype=object))
        if filled > MAX_VALUES_BYTES // 8:
            raise InvalidModel(f"{key}.{name}: expected at most {MAX_VALUES_BYTES // 8} elements, got {filled}")
        if array.size not in (1, filled):
            raise InvalidModel(
                f"{key}.{name}: expected {filled} elements of data, or one for all, got {array.size}; correct it"
            )
        array = np.broadcast_to(array.reshape(-1), (filled,)) if array.size == 1 else array
        array = array.reshape(tensor.shape)
    declared = inputs[name].type if name in inputs else None
    if not isinstance(declared, TensorType) or array.dtype.kind in "US":
        return array
    target = NUMPY_DTYPES[declared.dtype]
    is_exact = target.kind == "f" and array.dtype.kind in "iuf"
    with np.errstate(over="ignore"):
        narrowed = array.astype(target) if is_exact or (array.dtype.kind in "iub" and target.kind in "iub") else array
    return narrowed if is_exact or np.array_equal(narrowed, array) else array


def _checked(name: str, array: Array, inputs: Mapping[str, ValueSpec], key: str) -> Value:
    if name not in inputs:
        near = similar_names(name, inputs, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"its inputs are {', '.join(inputs)}"
        raise InvalidModel(f'{key}: expected inputs of the graph, got "{name[:128]}"; {hint}')
    declared = inputs[name].type
    if not isinstance(declared, TensorType):
        raise InvalidModel(f"{key}.{name}: expected a tensor input, got an input of type {declared}; leave it out")
    wanted = NUMPY_DTYPES[declared.dtype]
    if not (array.dtype == wanted or (wanted.kind == "O" and array.dtype.kind == "U")):
        raise InvalidModel(f"{key}.{name}: expected {declared.dtype}, got {array.dtype}; convert it")
    shape = declared.shape
    fits = shape is None or (
        len(shape) == array.ndim and all(d in (-1, size) for d, size in zip(shape, array.shape, strict=True))
    )
    if not fits:
        raise InvalidModel(
            f"{key}.{name}: expected the shape {list(shape or ())} (-1 is free), got {list(array.shape)}; correct it"
        )
    value: Array = array.astype(object) if wanted.kind == "O" else np.ascontiguousarray(array).reshape(array.shape)
    return value
