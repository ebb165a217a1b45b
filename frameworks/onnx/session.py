"""One ONNX graph in one InferenceSession: opened, described, run."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.batches.padding import missing_mask
from frameworks.errors import InvalidInput, InvalidModel, ModelFailed, OutOfMemory
from frameworks.onnx.batching import why_not_batched
from frameworks.onnx.binding import OutputBinding
from frameworks.onnx.external_data import read_external_data
from frameworks.onnx.padding import read_sequence, tried
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.trials import trial_inputs
from frameworks.onnx.value_types import read_type
from frameworks.settings import OnnxModelEntry
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    NUMPY_DTYPES,
    Array,
    Batch,
    MapType,
    ModelSpec,
    OptionalType,
    SequenceSpec,
    TensorBatch,
    TensorType,
    Value,
    ValueSpec,
)
from memory.pooled_arrays import PooledArrays

log = structlog.get_logger(__name__)

_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
# Of a sequence while a model warms up whose entry has no input_shape.
_TRIAL_LENGTH = 9
_LOG_ERRORS_ONLY = 3
_LOG_NOTHING = 4
# Of ONNX Runtime's arenas, of CUDA, of cuBLAS and cuDNN, and of new, which says it otherwise on Windows.
_OUT_OF_MEMORY_SIGNS = (
    "failed to allocate",
    "smaller than requested bytes",
    "bfcarena",
    "out of memory",
    "status_alloc_failed",
    "bad_alloc",
    "bad allocation",
    "memoryerror",
)
_DEVICE_SIGNS = ("cuda", "cublas", "cudnn", "tensorrt", "hip", "miopen")


def open_session(
    path: Path,
    choice: ProviderChoice,
    intra_op_threads: int,
    inter_op_threads: int,
    to_read: frozenset[str] = frozenset(),
) -> ort.InferenceSession:
    """Opens a graph with every optimisation on. `to_read`: the locations of external data that is not to be mapped.

    By path, never from bytes: ONNX Runtime then refuses external data outside the model's own folder, symbolic links
    followed. Custom-op libraries are never registered. Raises InvalidModel, OutOfMemory.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = inter_op_threads
    if inter_op_threads > 1:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.log_severity_level = _LOG_ERRORS_ONLY
    # Models share the cores; a thread that spins while it waits takes them from the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The arena stays on. It keeps the activations of the largest batch until the session is closed; without it a run
    # that needs more than malloc keeps (32 MiB in one piece) faults them in anew: MiniLM, 32 texts of 128 tokens, 10 to
    # 30 % slower. Its kSameAsRequested is for the environment's arena only, which outlives the sessions.
    # On a CPU that fusion is the slower way: its kernel goes number by number, Add and LayerNormalization do not.
    # Without it MiniLM is 15 % faster, and 35 % where its MatMuls are int8.
    on_cpu = choice.session_providers[0][0] == "CPUExecutionProvider"
    slow = ["SkipLayerNormFusion"] if on_cpu else None
    try:
        contents = read_external_data(options, path, to_read)
        session = ort.InferenceSession(str(path), options, providers=choice.session_providers, disabled_optimizers=slow)
        session.external_data = contents  # where it reads them, until it goes
        return session
    except Exception as error:
        message = _plain(error)
        if _shows(message, _OUT_OF_MEMORY_SIGNS):
            raise OutOfMemory(f"{path}: the graph does not fit into memory: {message}") from error
        raise InvalidModel(f"{path}: onnxruntime cannot load it: {message}") from error


class OnnxModel:
    """A graph of tensors. One thread at a time calls `infer`."""

    tokenizer: TextTokenizer | None = None

    def __init__(
        self,
        session: ort.InferenceSession,
        path: Path,
        choice: ProviderChoice,
        weight_bytes: int,
        entry: OnnxModelEntry,
        runs_by_shape: bool = False,
        arrays: PooledArrays | None = None,
    ) -> None:
        """`runs_by_shape`: the operators let the shapes alone settle how long a run takes. `arrays`: for large outputs.

        Raises InvalidModel where a type cannot travel or the entry contradicts the graph.
        """
        self._session: ort.InferenceSession | None = session
        self._path = path
        self._input_shape = entry.input_shape
        inputs = [ValueSpec(a.name, t := read_type(a), not isinstance(t, OptionalType)) for a in session.get_inputs()]
        defaults = [ValueSpec(a.name, read_type(a), required=False) for a in session.get_overridable_initializers()]
        outputs = [ValueSpec(a.name, read_type(a)) for a in session.get_outputs()]
        self._sequence = read_sequence(entry, path, [*inputs, *defaults])
        if self._sequence and (mask := self._sequence.mask):
            inputs = [replace(spec, required=spec.required and spec.name != mask.name) for spec in inputs]
        self.spec = ModelSpec(
            framework="onnx",
            task="tensor",
            inputs=(*inputs, *defaults),
            outputs=tuple(outputs),
            device=choice.device_of(session.get_providers()[0]),
            dtype=_main_dtype(inputs, outputs),
            memory_bytes=weight_bytes,
            providers=tuple(session.get_providers()),
            sequence=self._sequence,
        )
        # An accelerator may make its caller wait; strings may be of any length.
        numbers = all(isinstance(s.type, TensorType) and s.type.dtype != "string" for s in self.spec.inputs)
        if runs_by_shape and numbers and self.spec.device == "cpu":
            self.spec = replace(self.spec, runs_by_shape=True)
        self._free_names = {
            a.name: [d if isinstance(d, str) else None for d in a.shape]
            for a in (*session.get_inputs(), *session.get_overridable_initializers())
        }
        self._assumed: dict[str, int] = {}
        if self._sequence is not None:
            self._assumed = self._name_sequence(self._sequence)
        # What a run refuses is told to its caller; the log, where no caller could write, stays as it is.
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _LOG_NOTHING
        self._needs_ort_values = any(
            isinstance(s.type, TensorType) and s.type.dtype == "bfloat16"
            for s in (*self.spec.inputs, *self.spec.outputs)
        )
        self._binding: OutputBinding | None = None
        if arrays is not None and not self._needs_ort_values:
            self._binding = OutputBinding(session, outputs, arrays)
        self._check_input_shape()

    def infer(self, batch: Batch) -> dict[str, Value]:
        """Raises InvalidInput where the values do not suit the graph, OutOfMemory, ModelFailed."""
        if not isinstance(batch, TensorBatch):
            raise InvalidInput("text", "this model takes tensors; send inputs or input_data")
        return self.run_graph(batch.inputs, batch.output_names or tuple(spec.name for spec in self.spec.outputs))

    def run_graph(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        """One run of the session, as `infer`."""
        session = self._session
        if session is None:
            raise ModelFailed(f"{self._path}: the session is closed")
        if self._sequence is not None and (mask := missing_mask(inputs, self._sequence)) is not None:
            inputs = {**inputs, **mask}
        try:
            if self._needs_ort_values:
                return self._run_ort_values(session, inputs, output_names)
            if self._binding and (bound := self._binding.run(session, inputs, output_names, self._run_options)):
                return bound
            return dict(zip(output_names, session.run(list(output_names), inputs, self._run_options), strict=True))
        except Exception as error:
            message = _plain(error)
            if isinstance(error, MemoryError) or _shows(message, _OUT_OF_MEMORY_SIGNS):
                raise OutOfMemory(f"the batch does not fit into memory: {message}") from error
            if self.spec.device != "cpu" and _shows(message, _DEVICE_SIGNS):
                raise ModelFailed(f"the device failed: {message}") from error
            # A graph is a pure function: what it refuses is what came in.
            raise InvalidInput("inputs", f"the graph refuses these values: {message}") from error

    def warm_up(self) -> None:
        """Runs once with zeros of the declared shape. Raises InvalidModel where a fully declared shape does not run."""
        values = self.example_inputs()
        free = self._declared_sizes()
        guessed = any(self._is_guessed(spec, free) for spec in self.spec.inputs if spec.required)
        try:
            self.run_graph(values, tuple(spec.name for spec in self.spec.outputs))
        except (InvalidInput, ModelFailed) as error:
            self.spec = replace(self.spec, unbatched_because="it was not warmed up; set input_shape")
            if not guessed:
                raise InvalidModel(
                    f"{self._path}: the graph does not run with its declared shape: {error.message}"
                ) from error
            # Free dimensions were guessed as 1; the graph may well want more. Its first caller warms it up.
            log.warning("not warmed up, set input_shape", path=str(self._path), reason=error.message)
            return
        self._try_batching({name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)})

    def on_idle(self) -> None:
        """As BatchModel.on_idle: ONNX Runtime's threads are in nobody's way while they sleep."""

    def close(self) -> None:
        self._session = None

    def example_inputs(self) -> dict[str, Value]:
        """Zeros for every required input, and the mask. Free dimensions are as input_shape says, else 1, the sequence
        axis a few.
        """
        sizes = self._assumed | self._declared_sizes()
        values = {spec.name: self._zeros(spec, sizes) for spec in self.spec.inputs if spec.required}
        if self._sequence is not None:
            values |= missing_mask(values, self._sequence) or {}
        return values

    def _declared_sizes(self) -> dict[str, int]:
        """How large input_shape says that free dimensions are, by their names."""
        if self._input_shape is None:
            return {}
        names = self._free_names[self.spec.inputs[0].name]
        return {n: d for n, d in zip(names, self._input_shape, strict=True) if n is not None}

    def _try_batching(self, shapes: dict[str, tuple[int, ...]]) -> None:
        names = tuple(spec.name for spec in self.spec.outputs)

        def run(inputs: dict[str, Value]) -> dict[str, Value]:
            return self.run_graph(inputs, names)

        because = why_not_batched(self.spec, shapes, run)
        batched = frozenset(spec.name for spec in trial_inputs(self.spec)) if because is None else frozenset()
        self.spec = replace(self.spec, batched_inputs=batched, unbatched_because=because)
        self.spec = replace(self.spec, sequence=tried(self.spec, shapes, run))
        if self.spec.sequence and self.spec.sequence.unpadded_because:
            log.warning(
                "only rows of one length share a batch",
                path=str(self._path),
                reason=self.spec.sequence.unpadded_because,
            )

    def _name_sequence(self, sequence: SequenceSpec) -> dict[str, int]:
        """Gives the free dimension that is the sequence one name in all inputs: their lengths are one. The name, and
        how long it is at warm-up where input_shape does not say so.
        """
        lists = [self._free_names[name] for name in sequence.pad_values]
        one_name = next((name for names in lists if (name := names[sequence.axis])), "the sequence axis")
        for names in lists:
            names[sequence.axis] = one_name
        return {one_name: _TRIAL_LENGTH}

    def _run_ort_values(
        self, session: ort.InferenceSession, inputs: dict[str, Value], output_names: tuple[str, ...]
    ) -> dict[str, Value]:
        """numpy has no bfloat16, so its bits travel in OrtValues."""
        feeds = {}
        for name, value in inputs.items():
            spec = self.spec.inputs_by_name[name]
            if isinstance(spec.type, TensorType) and spec.type.dtype == "bfloat16" and isinstance(value, np.ndarray):
                feeds[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bfloat16_bits(value), _ONNX_BFLOAT16)
            elif isinstance(value, np.ndarray):
                feeds[name] = ort.OrtValue.ortvalue_from_numpy(value)
            else:
                raise InvalidModel(
                    f'{self._path}: "{name}" is a {spec.type}, which cannot stand beside bfloat16 tensors'
                )
        results = session.run_with_ort_values(list(output_names), feeds, self._run_options)
        return {name: _from_ort_value(value) for name, value in zip(output_names, results, strict=True)}

    def _zeros(self, spec: ValueSpec, free: dict[str, int]) -> Value:
        kind = spec.type
        if isinstance(kind, MapType):
            return {"" if kind.key == "string" else 0: "" if str(kind.value) == "string" else 0}
        if not isinstance(kind, TensorType):
            return []
        shape: tuple[int, ...] = ()
        if kind.shape is not None:
            names = self._free_names[spec.name]
            shape = tuple(free.get(n or "", 1) if d < 0 else d for d, n in zip(kind.shape, names, strict=True))
        if self._input_shape is not None and spec is self.spec.inputs[0]:
            shape = self._input_shape
        return np.full(shape, "", dtype=object) if kind.dtype == "string" else np.zeros(shape, NUMPY_DTYPES[kind.dtype])

    def _is_guessed(self, spec: ValueSpec, free: dict[str, int]) -> bool:
        """Whether the shape of this input's zeros is neither the graph's word nor input_shape's."""
        if self._input_shape is not None and spec is self.spec.inputs[0]:
            return False
        names = self._free_names[spec.name]
        return spec.shape is None or any(d < 0 and n not in free for d, n in zip(spec.shape, names, strict=True))

    def _check_input_shape(self) -> None:
        wanted = self._input_shape
        if wanted is None:
            return
        if not self.spec.inputs or (declared := self.spec.inputs[0].shape) is None:
            raise InvalidModel(
                f"{self._path}: input_shape is set, and the graph's first input declares no shape; leave it out"
            )
        fits = len(wanted) == len(declared) and all(d in (-1, w) for w, d in zip(wanted, declared, strict=True))
        if not fits:
            raise InvalidModel(
                f"{self._path}: input_shape is {list(wanted)}, and the graph's "
                f'"{self.spec.inputs[0].name}" has {list(declared)} (-1 is free); make them agree'
            )


def bfloat16_bits(numbers: Array) -> Array:
    """float32 numbers → the uint16 bits of the nearest bfloat16, ties to even (IEEE 754); NaN stays NaN."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding up could carry a NaN's payload away into infinity.
    halves: Array = np.where(np.isnan(numbers), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    return halves.reshape(numbers.shape)  # numpy made a scalar's array one-dimensional


def _from_ort_value(value: ort.OrtValue) -> Value:
    if not value.has_value():
        return None
    if value.is_tensor() and value.data_type() == "tensor(bfloat16)":
        size = value.tensor_size_in_bytes()
        raw = ctypes.string_at(value.data_ptr(), size) if size else b""
        bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(value.shape())
    result: Value = value.numpy()
    return result


def _main_dtype(inputs: list[ValueSpec], outputs: list[ValueSpec]) -> str:
    """The first floating-point dtype among inputs, then outputs; else the first input's: what /models shows."""
    dtypes = [spec.type.dtype for spec in (*inputs, *outputs) if isinstance(spec.type, TensorType)]
    return next((dtype for dtype in dtypes if "float" in dtype), dtypes[0] if dtypes else "none")


def _plain(error: Exception) -> str:
    """`[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : what happened` → `what happened`, on one line."""
    text = str(error).replace("\n", " ").strip()
    return text.split(" : ", 3)[-1] if text.startswith("[ONNXRuntimeError]") else f"{text or type(error).__name__}"


def _shows(message: str, signs: tuple[str, ...]) -> bool:
    lower = message.lower()
    return any(sign in lower for sign in signs)
