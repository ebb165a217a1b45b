"""Run a graph by captured CUDA graphs: one launch for all its kernels, from and to memory at fixed addresses.

ONNX Runtime keeps a captured graph in the thread that captured it (`PerThreadContext` of its CUDA provider). So all
runs of a session have one thread, which outlives the load. It captures by cudaStreamCaptureModeGlobal: meanwhile calls
of other threads to CUDA fail. So the model has a process of its own.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort

from frameworks.onnx.cuda.graph_policy import bucket_for
from frameworks.onnx.providers import GraphDevice
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorType, Value

_LOG_NOTHING = 4
_NOT_CAPTURED = -1
"""The `gpu_graph_id` of a run that captures and replays nothing; 0 is reserved, others name a captured graph."""


class FixedRun:
    """One captured graph with its tensors on the device. `rows`: of its bucket; None: its shapes have no free rows."""

    def __init__(
        self,
        session: ort.InferenceSession,
        device: GraphDevice,
        graph_id: int,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        rows: int | None,
    ) -> None:
        """`inputs` and `outputs`: of a run that was not captured; only their shapes and dtypes matter."""
        self._session = session
        self._rows = rows
        # numpy() of a tensor of the host shares its memory, which the next run overwrites.
        self._shares_memory = device.kind == "cpu"
        self._inputs = {name: _tensor(device, value) for name, value in inputs.items()}
        self._outputs = {name: _tensor(device, value) for name, value in outputs.items()}
        self.size_bytes = sum(value.nbytes for value in (*inputs.values(), *outputs.values()))
        self._binding = session.io_binding()
        for name, tensor in self._inputs.items():
            self._binding.bind_ortvalue_input(name, tensor)
        for name, tensor in self._outputs.items():
            self._binding.bind_ortvalue_output(name, tensor)
        self._options = _run_options(graph_id)

    def run(self, inputs: Mapping[str, Array], output_names: tuple[str, ...], rows: int | None) -> dict[str, Value]:
        """Copy the inputs to the device, replay, and copy the wanted outputs back. `rows`: at most the bucket's.

        The first call captures: ONNX Runtime then runs the graph three times.
        """
        for name, tensor in self._inputs.items():
            tensor.update_inplace(self._filled(inputs[name], rows))
        # A replay is ordered only behind its own stream, and the copies have another. It waits for its own end itself.
        self._binding.synchronize_inputs()
        self._session.run_with_iobinding(self._binding, self._options)
        return {name: self._to_host(name, rows) for name in output_names}

    def _filled(self, value: Array, rows: int | None) -> Array:
        """Return the rows of the bucket: those of the input, then its first one again, which the graph accepts."""
        if self._rows is None or rows == self._rows:
            return value
        filled = np.empty((self._rows, *value.shape[1:]), value.dtype)
        filled[:rows] = value
        filled[rows:] = value[:1]
        return filled

    def _to_host(self, name: str, rows: int | None) -> Array:
        whole: Array = self._outputs[name].numpy()
        wanted = whole if self._rows is None else whole[:rows]
        return wanted.copy() if self._shares_memory else wanted


class GraphRuns:
    """The captured graphs of one session, and its runs without them, on a thread of its own.

    Other threads wait for it, and get the errors of the session.
    """

    def __init__(self, session: ort.InferenceSession, device: GraphDevice, spec: ModelSpec) -> None:
        self.device = device
        self._session: ort.InferenceSession | None = session
        self._required = {
            declared.name: (_dtype(declared.type), tuple(declared.shape or ()))
            for declared in spec.inputs
            if declared.required
        }
        self._eager_options = _run_options(_NOT_CAPTURED)
        self._runs: dict[int | None, FixedRun] = {}
        self._buckets: tuple[int, ...] = ()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cuda-graph")

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors at fixed addresses."""
        return sum(run.size_bytes for run in self._runs.values())

    def run(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        """Replay the graph that fits the inputs; run without a captured graph where none does."""
        return self._thread.submit(self._run_here, inputs, output_names).result()

    def run_eagerly(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        """Run without a captured graph."""
        return self._thread.submit(self._run_eagerly_here, inputs, output_names).result()

    def capture(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], rows: int | None) -> None:
        """Capture a graph for the shapes of a run. `rows`: of a bucket; None where no row is free."""
        self._thread.submit(self._capture_here, inputs, outputs, rows).result()

    def close(self) -> None:
        """Release the graphs and their memory on the thread that has them, and end it."""
        self._thread.submit(self._release_here).result()
        self._thread.shutdown()

    def _run_here(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        arrays = self._fitting(inputs)
        if arrays is not None:
            rows = next(iter(arrays.values())).shape[0] if self._buckets else None
            run = self._runs.get(rows if rows is None else bucket_for(rows, self._buckets) or 0)
            if run is not None:
                return run.run(arrays, output_names, rows)
        return self._run_eagerly_here(inputs, output_names)

    def _run_eagerly_here(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        assert self._session is not None
        results = self._session.run(list(output_names), inputs, self._eager_options)
        return dict(zip(output_names, results, strict=True))

    def _capture_here(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], rows: int | None) -> None:
        run = FixedRun(self._session, self.device, len(self._runs) + 1, inputs, outputs, rows)
        run.run(inputs, (), rows)
        self._runs[rows] = run
        if rows is not None:
            self._buckets = tuple(sorted((*self._buckets, rows)))

    def _fitting(self, inputs: dict[str, Value]) -> dict[str, Array] | None:
        """Return the inputs if they are those that the graphs have, with as many rows in each; else None."""
        if inputs.keys() != self._required.keys():
            return None
        arrays: dict[str, Array] = {}
        rows: set[int] = set()
        for name, (dtype, declared) in self._required.items():
            value = inputs[name]
            if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != len(declared):
                return None
            free = declared[:1] == (-1,)
            if value.shape[free:] != declared[free:]:
                return None
            if free:
                rows.add(len(value))
            arrays[name] = value
        return arrays if len(rows) <= 1 else None

    def _release_here(self) -> None:
        self._runs.clear()
        self._session = None


def _tensor(device: GraphDevice, like: Array) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_shape_and_type([*like.shape], like.dtype.type, device.kind, device.index)


def _run_options(graph_id: int) -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = _LOG_NOTHING
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options


def _dtype(kind: Any) -> np.dtype[Any]:
    assert isinstance(kind, TensorType)
    return NUMPY_DTYPES[kind.dtype]
