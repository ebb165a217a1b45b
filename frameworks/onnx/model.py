"""One ONNX graph as a model of tensors: described, warmed up, run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.batches.padding import missing_mask
from frameworks.errors import InvalidInput, InvalidModel, ModelFailed, OutOfMemory
from frameworks.onnx.batching import reason_not_batched, trial_inputs
from frameworks.onnx.binding import OutputBinding
from frameworks.onnx.padding import read_sequence, try_padding
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.session import is_device_failure, is_out_of_memory, plain_message, run_with_bfloat16
from frameworks.onnx.value_types import read_type
from frameworks.settings import OnnxModelEntry
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    NUMPY_DTYPES,
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

# Length of a sequence at warm-up of a model without input_shape.
_TRIAL_LENGTH = 9
_LOG_NOTHING = 4


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
        """`runs_by_shape`: shapes alone decide how long a run takes. `arrays`: for large outputs.

        Raises InvalidModel for an unsupported type, or if the entry contradicts the graph.
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
        # An accelerator may block its caller, and strings have any length.
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
        # Errors of a run are returned to the caller, so the log stays free of them.
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
        """Raises InvalidInput for values that do not suit the graph, OutOfMemory, ModelFailed."""
        if not isinstance(batch, TensorBatch):
            raise InvalidInput("text", "expected tensors for this model, got text; send inputs or input_data")
        return self.run_graph(batch.inputs, batch.output_names or tuple(spec.name for spec in self.spec.outputs))

    def run_graph(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        """Run the session once, as `infer`."""
        session = self._session
        if session is None:
            raise ModelFailed(f"{self._path}: the session is closed")
        if self._sequence is not None and (mask := missing_mask(inputs, self._sequence)) is not None:
            inputs = {**inputs, **mask}
        try:
            if self._needs_ort_values:
                return run_with_bfloat16(session, inputs, output_names, self.spec.inputs_by_name, self._run_options)
            first = next(iter(inputs.values()), None)
            if self._binding and isinstance(first, np.ndarray) and first.ndim and len(first) >= self._binding.min_rows:
                bound = self._binding.run(session, inputs, output_names, self._run_options)
                if bound is not None:
                    return bound
            return dict(zip(output_names, session.run(list(output_names), inputs, self._run_options), strict=True))
        except Exception as error:
            message = plain_message(error)
            if isinstance(error, MemoryError) or is_out_of_memory(message):
                raise OutOfMemory(f"the batch does not fit into memory: {message}") from error
            if self.spec.device != "cpu" and is_device_failure(message):
                raise ModelFailed(f"the device failed: {message}") from error
            # A graph is a pure function: its refusals are caused by the inputs.
            raise InvalidInput("inputs", f"the graph refuses these values: {message}") from error

    def warm_up(self) -> None:
        """Run once with zeros of the declared shape. Raises InvalidModel if a fully declared shape does not run."""
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
            # Free dimensions were guessed as 1, and the graph may need more. The first request warms it up.
            log.warning("not warmed up: set input_shape", path=str(self._path), reason=error.message)
            return
        self._try_batching({name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)})

    def on_idle(self) -> None:
        """As BatchModel.on_idle: sleeping threads of ONNX Runtime slow down nothing."""

    def close(self) -> None:
        self._session = None

    def example_inputs(self) -> dict[str, Value]:
        """Return zeros for every required input, and the mask. Free dimensions are those of input_shape, else 1, and a
        few for the sequence axis.
        """
        sizes = self._assumed | self._declared_sizes()
        values = {spec.name: self._zeros(spec, sizes) for spec in self.spec.inputs if spec.required}
        if self._sequence is not None:
            values |= missing_mask(values, self._sequence) or {}
        return values

    def _declared_sizes(self) -> dict[str, int]:
        """Return the sizes that input_shape gives to free dimensions, by name."""
        if self._input_shape is None:
            return {}
        names = self._free_names[self.spec.inputs[0].name]
        return {n: d for n, d in zip(names, self._input_shape, strict=True) if n is not None}

    def _try_batching(self, shapes: dict[str, tuple[int, ...]]) -> None:
        names = tuple(spec.name for spec in self.spec.outputs)

        def run(inputs: dict[str, Value]) -> dict[str, Value]:
            return self.run_graph(inputs, names)

        because = reason_not_batched(self.spec, shapes, run)
        batched = frozenset(spec.name for spec in trial_inputs(self.spec)) if because is None else frozenset()
        self.spec = replace(self.spec, batched_inputs=batched, unbatched_because=because)
        self.spec = replace(self.spec, sequence=try_padding(self.spec, shapes, run))
        if self.spec.sequence and self.spec.sequence.unpadded_because:
            log.warning(
                "rows of different lengths are not batched together",
                path=str(self._path),
                reason=self.spec.sequence.unpadded_because,
            )

    def _name_sequence(self, sequence: SequenceSpec) -> dict[str, int]:
        """Give the sequence's free dimension one name in all inputs, as their lengths are equal. Return that name and
        its length at warm-up without input_shape.
        """
        lists = [self._free_names[name] for name in sequence.pad_values]
        one_name = next((name for names in lists if (name := names[sequence.axis])), "the sequence axis")
        for names in lists:
            names[sequence.axis] = one_name
        return {one_name: _TRIAL_LENGTH}

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
        """Return whether neither the graph nor input_shape declares the shape of this input's zeros."""
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
                f"{self._path}: input_shape: expected none for a first input without declared shape; remove it"
            )
        fits = len(wanted) == len(declared) and all(d in (-1, w) for w, d in zip(wanted, declared, strict=True))
        if not fits:
            raise InvalidModel(
                f'{self._path}: input_shape: expected {list(declared)} for "{self.spec.inputs[0].name}" (-1 is free), '
                f"got {list(wanted)}; make them agree"
            )


def _main_dtype(inputs: list[ValueSpec], outputs: list[ValueSpec]) -> str:
    """Return the first floating-point dtype of inputs, then outputs; else the first input's. /models shows it."""
    dtypes = [spec.type.dtype for spec in (*inputs, *outputs) if isinstance(spec.type, TensorType)]
    return next((dtype for dtype in dtypes if "float" in dtype), dtypes[0] if dtypes else "none")
