"""Run a graph whose large outputs are written into leased buffers, if their shapes are known before the run."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from frameworks.onnx.session import is_final, plain_message
from frameworks.types import NUMPY_DTYPES, Array, TensorType, Value, ValueSpec
from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays

# Types that numpy has not, or not as plain bits.
_UNBOUND_DTYPES = ("bfloat16", "string")


@dataclass(frozen=True, slots=True)
class _KnownOutput:
    """An output of known shape. `sizes`: for each dimension its size, or the input and axis of the same size."""

    dtype: np.dtype[Any]
    sizes: tuple[int | tuple[str, int], ...]

    def shape(self, inputs: Mapping[str, Array]) -> tuple[int, ...] | None:
        """Return the shape, or None if an input is absent or has other dimensions than declared."""
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
    def min_rows(self) -> int:
        """Rows from which the output is leased; 0 if other dimensions than the rows are free."""
        free = [size for size in self.sizes if not isinstance(size, int)]
        if len(free) != 1 or free[0] is not self.sizes[0]:
            return 0
        row_bytes = math.prod(size for size in self.sizes if isinstance(size, int)) * self.dtype.itemsize
        return -(-PAYS_FROM_BYTES // max(1, row_bytes))


class OutputBinding:
    """The outputs of one graph. A dimension is known if it is a number, or has the name of an input's dimension; an
    unnamed first dimension is taken for the rows. An output whose shape turns out differently is no longer bound.
    """

    def __init__(self, session: ort.InferenceSession, outputs: Sequence[ValueSpec], arrays: PooledArrays) -> None:
        """`outputs`: all of the session's, in its order."""
        self._arrays = arrays
        self._on_device = session.get_providers()[0] != "CPUExecutionProvider"
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
            if not isinstance(spec.type, TensorType) or spec.type.dtype in _UNBOUND_DTYPES:
                continue
            self._tensors.add(spec.name)
            declared = spec.shape or ()
            sizes = [size if size >= 0 else named.get(argument.shape[axis]) for axis, size in enumerate(declared)]
            if sizes and sizes[0] is None and argument.shape[0] is None:
                sizes[0] = rows
            known = tuple(size for size in sizes if size is not None)
            if known and len(known) == len(sizes):
                self._known[spec.name] = _KnownOutput(NUMPY_DTYPES[spec.type.dtype], known)
        self.min_rows = min((known.min_rows for known in self._known.values()), default=sys.maxsize)
        """Rows of the first input from which some output may be large."""

    def run(
        self,
        session: ort.InferenceSession,
        inputs: dict[str, Value],
        output_names: tuple[str, ...],
        options: ort.RunOptions,
    ) -> dict[str, Value] | None:
        """Return output name → value, the large ones in leased buffers, which return to the pool with their last view.

        None if no output is large and known: then nothing has run. Raises what the session raises.
        """
        buffers = self._lease_buffers(inputs, output_names)
        if not buffers:
            return None
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for name in output_names:
            if (array := buffers.get(name)) is None:
                binding.bind_output(name)
            else:
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        try:
            # Copies of pageable memory are done when a binding, or a run, returns. A wait for the device would include
            # other models, and break a capture of theirs.
            session.run_with_iobinding(binding, options)
        except RuntimeError as error:
            if self._on_device and is_final(plain_message(error)):
                raise
            # Either the graph refuses the inputs, and does so again, or a shape differs from the declared one.
            results = session.run(list(output_names), inputs, options)
            outputs: dict[str, Value] = dict(zip(output_names, results, strict=True))
            self._drop_misdeclared(outputs, buffers)
            return outputs
        values = zip(output_names, binding.get_outputs(), strict=True)
        return {name: buffers[name] if name in buffers else value.numpy() for name, value in values}

    def _lease_buffers(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Array]:
        """Lease arrays for outputs that are large enough; none if a binding cannot hold the inputs or outputs."""
        arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        buffers: dict[str, Array] = {}
        if not self._tensors.issuperset(output_names) or len(arrays) < len(inputs):
            return buffers
        for name in output_names:
            known = self._known.get(name)
            shape = known.shape(arrays) if known else None
            if known and shape and self._arrays.pays(math.prod(shape) * known.dtype.itemsize):
                buffers[name] = self._arrays.empty(shape, known.dtype)
        if buffers and any(value.dtype.hasobject for value in arrays.values()):
            buffers.clear()
        return buffers

    def _drop_misdeclared(self, outputs: dict[str, Value], buffers: dict[str, Array]) -> None:
        """Stop binding outputs whose shape differed from the expected one."""
        for name, array in buffers.items():
            value = outputs[name]
            if not isinstance(value, np.ndarray) or value.shape != array.shape:
                self._known.pop(name, None)
