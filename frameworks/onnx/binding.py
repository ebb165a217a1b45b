"""Runs of a graph whose large outputs are written into leased buffers, where their shapes are known beforehand."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from frameworks.types import NUMPY_DTYPES, Array, TensorType, Value, ValueSpec
from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays

# Types whose bits numpy does not have as they are.
_NOT_BOUND = ("bfloat16", "string")


@dataclass(frozen=True, slots=True)
class _KnownOutput:
    """`sizes`: of each dimension either its size, or the input and the axis that are as large."""

    dtype: np.dtype[Any]
    sizes: tuple[int | tuple[str, int], ...]

    def shape(self, inputs: Mapping[str, Array]) -> tuple[int, ...] | None:
        """None where an input is not there, or has other dimensions than it declares."""
        shape = []
        for size in self.sizes:
            if isinstance(size, int):
                shape.append(size)
                continue
            name, axis = size
            if name not in inputs or inputs[name].ndim <= axis:
                return None
            shape.append(inputs[name].shape[axis])
        return tuple(shape)

    @property
    def rows_that_pay(self) -> int:
        """With fewer rows it is never leased; 0 where more than the rows is free."""
        free = [size for size in self.sizes if not isinstance(size, int)]
        if len(free) != 1 or free[0] is not self.sizes[0]:
            return 0
        row_bytes = math.prod(size for size in self.sizes if isinstance(size, int)) * self.dtype.itemsize
        return -(-PAYS_FROM_BYTES // max(1, row_bytes))


class OutputBinding:
    """One graph's outputs. A dimension is known if it is a number, or has the name of an input's; a first dimension
    without a name is taken for the rows. Where a graph turns out to give another shape, that output is left alone.
    """

    def __init__(self, session: ort.InferenceSession, outputs: Sequence[ValueSpec], arrays: PooledArrays) -> None:
        """`outputs`: all of the session's, in its order."""
        self._arrays = arrays
        inputs = session.get_inputs()
        named: dict[object, tuple[str, int]] = {}
        for given in inputs:
            for axis, size in enumerate(given.shape):
                if isinstance(size, str):
                    named.setdefault(size, (given.name, axis))
        rows = (inputs[0].name, 0) if inputs and inputs[0].shape else None
        self._tensors: set[str] = set()
        self._known: dict[str, _KnownOutput] = {}
        for argument, spec in zip(session.get_outputs(), outputs, strict=True):
            if not isinstance(spec.type, TensorType) or spec.type.dtype in _NOT_BOUND:
                continue
            self._tensors.add(spec.name)
            declared = spec.shape or ()
            sizes = [size if size >= 0 else named.get(argument.shape[axis]) for axis, size in enumerate(declared)]
            if sizes and sizes[0] is None and argument.shape[0] is None:
                sizes[0] = rows
            known = tuple(size for size in sizes if size is not None)
            if known and len(known) == len(sizes):
                self._known[spec.name] = _KnownOutput(NUMPY_DTYPES[spec.type.dtype], known)
        self._from_rows = min((known.rows_that_pay for known in self._known.values()), default=sys.maxsize)

    def run(
        self,
        session: ort.InferenceSession,
        inputs: dict[str, Value],
        output_names: tuple[str, ...],
        options: ort.RunOptions,
    ) -> dict[str, Value] | None:
        """Output name → value, the large ones in leased buffers, which go back with the last view of them.

        None where none of them is large or known: then nothing has run. Raises what the session raises.
        """
        first = next(iter(inputs.values()), None)
        if not isinstance(first, np.ndarray) or not first.ndim or len(first) < self._from_rows:
            return None
        room = self._room(inputs, output_names)
        if not room:
            return None
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for name in output_names:
            if (array := room.get(name)) is None:
                binding.bind_output(name)
            else:
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        try:
            session.run_with_iobinding(binding, options)
        except RuntimeError:
            # Either the graph refuses what came in, and says so once more, or a shape is not what the graph declares.
            results = session.run(list(output_names), inputs, options)
            outputs: dict[str, Value] = dict(zip(output_names, results, strict=True))
            self._forget(outputs, room)
            return outputs
        values = zip(output_names, binding.get_outputs(), strict=True)
        return {name: room[name] if name in room else value.numpy() for name, value in values}

    def _room(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Array]:
        """Leased arrays for those outputs where it pays; none where a binding cannot take what goes in or comes out."""
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        room: dict[str, Array] = {}
        if not self._tensors.issuperset(output_names) or len(arrays) < len(inputs):
            return room
        for name in output_names:
            known = self._known.get(name)
            shape = known.shape(arrays) if known else None
            if known and shape and self._arrays.pays(math.prod(shape) * known.dtype.itemsize):
                room[name] = self._arrays.empty(shape, known.dtype)
        if room and any(value.dtype.hasobject for value in arrays.values()):
            room.clear()
        return room

    def _forget(self, outputs: dict[str, Value], room: dict[str, Array]) -> None:
        """Leaves those alone from now on that came in another shape than was made room for."""
        for name, array in room.items():
            value = outputs[name]
            if not isinstance(value, np.ndarray) or value.shape != array.shape:
                self._known.pop(name, None)
