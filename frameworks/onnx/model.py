"""One ONNX graph as a model of tensors: described, warmed up, run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.core.errors import InvalidInput, InvalidModel, ModelFailed, OutOfMemory, RoundhouseError, without_paths
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.images.spec import ImageSpec
from frameworks.onnx.batching import read_sequence, reason_not_batched, reason_steps_not_batched, try_padding
from frameworks.onnx.binding import OutputBinding
from frameworks.onnx.examples import ExampleValues
from frameworks.onnx.given_values import read_given_values
from frameworks.onnx.graph_summary import GraphSummary
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.session import is_device_failure, is_out_of_memory, plain_message, run_with_bfloat16
from frameworks.onnx.states.states import dimension_names, read_states
from frameworks.onnx.value_types import read_type
from frameworks.scheduling.merging.comparison import reason_not_batchable, trial_inputs
from frameworks.scheduling.merging.padding import missing_mask
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    Batch,
    ModelSpec,
    OptionalType,
    Task,
    TensorBatch,
    TensorType,
    Value,
    ValueSpec,
)
from memory.pooled_arrays import PooledArrays

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor
    from frameworks.onnx.cuda.graph_runs import GraphRuns

log = structlog.get_logger(__name__)

_LOG_NOTHING = 4
_COMPARED = "; the rows of requests are compared"
_GIVE_VALUES = "set input_shape, input_values or warm_up"


class OnnxModel:
    """A graph of tensors. One thread at a time calls `infer`."""

    tokenizer: TextTokenizer | None = None
    image_processor: "ImageProcessor | None" = None

    def __init__(
        self,
        session: ort.InferenceSession,
        path: Path,
        choice: ProviderChoice,
        weight_bytes: int,
        entry: OnnxModelEntry,
        summary: GraphSummary | None = None,
        arrays: PooledArrays | None = None,
    ) -> None:
        """`summary`: of the graph's file, None if it was not read. `arrays`: for large outputs.

        Raises InvalidModel for an unsupported type, or if the entry contradicts the graph.
        """
        self._session: ort.InferenceSession | None = session
        self._path = path
        self._entry = entry
        inputs = [ValueSpec(a.name, t := read_type(a), not isinstance(t, OptionalType)) for a in session.get_inputs()]
        defaults = [ValueSpec(a.name, read_type(a), required=False) for a in session.get_overridable_initializers()]
        outputs = [ValueSpec(a.name, read_type(a)) for a in session.get_outputs()]
        self._output_names = tuple(declared.name for declared in outputs)
        graph_outputs, self._inputs_by_name = outputs, {declared.name: declared for declared in (*inputs, *defaults)}
        self.states = read_states(entry, path, inputs, outputs, dimension_names(session))
        """Values that a step of a sequence passes to the next one; None for a model without a state."""
        if self.states is not None:
            inputs = [declared for declared in inputs if declared.name not in self.states.input_names]
            outputs = [declared for declared in outputs if declared.name not in self.states.output_names]
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
            state=None if self.states is None else self.states.spec,
        )
        # An accelerator may block its caller, and strings have any length.
        are_numeric = all(isinstance(s.type, TensorType) and s.type.dtype != "string" for s in self.spec.inputs)
        if summary is not None and summary.runs_by_shape and are_numeric and self.spec.device == "cpu":
            self.spec = replace(self.spec, runs_by_shape=True)
        # Errors of a run are returned to the caller, so the log stays free of them.
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _LOG_NOTHING
        self._needs_ort_values = any(
            isinstance(s.type, TensorType) and s.type.dtype == "bfloat16"
            for s in (*self._inputs_by_name.values(), *graph_outputs)
        )
        self._binding: OutputBinding | None = None
        if arrays is not None and not self._needs_ort_values:
            self._binding = OutputBinding(session, graph_outputs, arrays)
        self._graphs: GraphRuns | None = None
        if choice.captures is not None:
            # Only a model with captured graphs needs it.
            from frameworks.onnx.cuda.capture import open_graph_runs

            self._graphs = open_graph_runs(session, choice.captures, self.spec, summary, path)
        self._check_input_shape()
        self.rounds_activations = summary is not None and summary.rounds_activations
        self._uses = {} if summary is None else summary.value_uses
        self._examples = ExampleValues(session, self.spec, entry.input_shape, self._uses)

    def declare_images(self, processor: "ImageProcessor", task: Task, image: ImageSpec) -> None:
        """Read images too, which `processor` prepares. Called before the warm-up, which then has their shape."""
        assert self._session is not None
        self.image_processor = processor
        self.spec = replace(self.spec, task=task, image=image)
        shape = self._entry.input_shape or processor.empty(1).shape
        self._examples = ExampleValues(self._session, self.spec, shape, self._uses)

    def infer(self, batch: Batch) -> dict[str, Value]:
        """Raises InvalidInput for values that do not suit the graph, OutOfMemory, ModelFailed."""
        if not isinstance(batch, TensorBatch):
            raise InvalidInput("text", "expected tensors for this model, got text; send inputs or input_data")
        return self.run_graph(batch.inputs, batch.output_names or self._output_names)

    def run_graph(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        """Run the session once, as `infer`."""
        if self.states is None:
            return self._run(inputs, output_names)
        return self.states.for_requests(self._run(self.states.for_graph(inputs), output_names))

    def _run(self, inputs: dict[str, Value], output_names: tuple[str, ...]) -> dict[str, Value]:
        session = self._session
        if session is None:
            raise ModelFailed("the session of the model is closed")
        if self._sequence is not None and (mask := missing_mask(inputs, self._sequence)) is not None:
            inputs = {**inputs, **mask}
        try:
            if self._graphs is not None:
                return self._graphs.run(inputs, output_names)
            if self._needs_ort_values:
                return run_with_bfloat16(session, inputs, output_names, self._inputs_by_name, self._run_options)
            first = next(iter(inputs.values()), None)
            if self._binding and isinstance(first, np.ndarray) and first.ndim and len(first) >= self._binding.min_rows:
                bound = self._binding.run(session, inputs, output_names, self._run_options)
                if bound is not None:
                    return bound
            return dict(zip(output_names, session.run(list(output_names), inputs, self._run_options), strict=True))
        except Exception as error:
            message = plain_message(error)
            public = without_paths(message)
            if isinstance(error, MemoryError) or is_out_of_memory(message):
                what = "the batch does not fit into memory"
                raise OutOfMemory(f"{what}: {message}", f"{what}: {public}") from error
            if self.spec.device != "cpu" and is_device_failure(message):
                raise ModelFailed(f"the device failed: {message}", public=f"the device failed: {public}") from error
            # A graph is a pure function: its refusals are caused by the inputs.
            raise InvalidInput("inputs", f"the graph refuses these values: {public}") from error

    def warm_up(self) -> None:
        """Run on the values of the model's entry, else once on made-up ones. A graph that refuses made-up values is
        served nevertheless.

        Raises OutOfMemory, and InvalidModel if the graph cannot run with the values or the input_shape of its entry.
        """
        given = read_given_values(self._entry, self._path, self.spec.inputs_by_name)
        ran = self._run_given(given) if given else self._run_made_up()
        if ran is not None and self.states is not None:
            self._try_batching_states(self.states.with_first(ran))
        elif ran is not None:
            self._try_batching({name: value.shape for name, value in ran.items() if isinstance(value, np.ndarray)})
        if self._graphs is not None:
            from frameworks.onnx.cuda.capture import capture_graphs

            self.spec = capture_graphs(self._graphs, self.spec, ran, self._path)

    def on_idle(self) -> None:
        """As BatchModel.on_idle: sleeping threads of ONNX Runtime slow down nothing."""

    def close(self) -> None:
        self._session = None
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None

    def example_inputs(self) -> dict[str, Value]:
        """Return a value for every required input, and the mask: of the model's entry, else made up."""
        given = read_given_values(self._entry, self._path, self.spec.inputs_by_name)
        return self._examples.make() | (given[0] if given else {})

    def first_states(self, rows: int) -> dict[str, Value]:
        """Return the states before the first step of a sequence, rows first; only of a model with a state."""
        assert self.states is not None, "the model has a state"
        return self.states.first_of(rows)

    def _run_example(self, values: dict[str, Value]) -> None:
        """Run on example values, as the first step of a sequence where the model has a state."""
        self.run_graph(values if self.states is None else self.states.with_first(values), self._output_names)

    def _run_given(self, given: Sequence[dict[str, Value]]) -> dict[str, Value]:
        """Run on each of the given values; return the first. Inputs that they lack are made up."""
        runs = [self._examples.make() | values for values in given]
        for values in runs:
            try:
                self._run_example(values)
            except (InvalidInput, ModelFailed) as error:
                raise InvalidModel(
                    f"{self._path}: the graph refuses the values of its entry: {error.message}"
                ) from error
        return runs[0]

    def _run_made_up(self) -> dict[str, Value] | None:
        """Run on made-up values; return those that the graph accepts, None if it refuses all."""
        is_proof = not self._examples.has_guessed_shapes and not self._examples.reads_values
        reasons: list[str] = []
        for number in (0, 1):
            values = self._examples.make(number)
            try:
                self._run_example(values)
            except InvalidInput as error:
                reasons.append(error.public)
            except ModelFailed as error:
                if is_proof:
                    raise InvalidModel(f"{self._path}: the graph does not run: {error.message}") from error
                reasons.append(error.public)
            else:
                return values
        if self._entry.input_shape is not None and is_proof:
            raise InvalidModel(
                f"{self._path}: input_shape: expected a shape that the graph runs with, got "
                f"{list(self._entry.input_shape)}; correct it ({reasons[0]})"
            )
        # Made-up values prove nothing about the graph: the values of a request may suit it.
        because = f"the graph refuses made-up values ({reasons[0]}); {_GIVE_VALUES}"
        why = reason_not_batchable(self.spec.with_states) or f"it was not warmed up{_COMPARED}"
        self.spec = replace(self.spec, unwarmed_because=because, unbatched_because=why, learns_batching=True)
        log.warning("not warmed up", path=str(self._path), reason=because)
        return None

    def _try_batching(self, shapes: dict[str, tuple[int, ...]]) -> None:
        def run(inputs: dict[str, Value]) -> dict[str, Value]:
            return self.run_graph(inputs, self._output_names)

        learns = False
        try:
            because = reason_not_batched(self.spec, shapes, run)
        except RoundhouseError as error:
            because, learns = f"a trial with two rows failed: {error.public}{_COMPARED}", True
        batched = frozenset(spec.name for spec in trial_inputs(self.spec)) if because is None else frozenset()
        self.spec = replace(self.spec, batched_inputs=batched, unbatched_because=because, learns_batching=learns)
        self.spec = replace(self.spec, sequence=try_padding(self.spec, shapes, run))
        if self.spec.sequence and self.spec.sequence.unpadded_because:
            log.warning(
                "rows of different lengths are not batched together",
                path=str(self._path),
                reason=self.spec.sequence.unpadded_because,
            )

    def _try_batching_states(self, ran: dict[str, Value]) -> None:
        """`ran`: the inputs of a first step that the graph accepts."""

        def run(inputs: dict[str, Value]) -> dict[str, Value]:
            return self.run_graph(inputs, self._output_names)

        spec, learns = self.spec.with_states, False
        try:
            because = reason_steps_not_batched(spec, ran, run)
        except RoundhouseError as error:
            because, learns = f"a trial with two rows failed: {error.public}{_COMPARED}", True
        batched = frozenset(each.name for each in trial_inputs(spec)) if because is None else frozenset()
        equal = frozenset(each.name for each in trial_inputs(spec) if not each.shape) & batched
        self.spec = replace(
            self.spec,
            batched_inputs=batched - equal,
            equal_inputs=equal,
            unbatched_because=because,
            learns_batching=learns,
        )

    def _check_input_shape(self) -> None:
        wanted = self._entry.input_shape
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
