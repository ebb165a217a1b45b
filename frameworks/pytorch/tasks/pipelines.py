"""Take a pipeline of transformers apart: its preprocessing and postprocessing for any thread, its batches for one."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from transformers.pipelines.base import ChunkPipeline, Pipeline, PipelineException, no_collate_fn, pad_collate_fn
from transformers.pipelines.pt_utils import PipelineIterator

from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.pytorch.tasks.inputs import check_frames, pipeline_input
from frameworks.pytorch.tasks.outputs import as_json
from frameworks.tasks.parts import check_parts
from frameworks.tasks.types import TaskItem

# The tensors whose second axis is the sequence, in the order in which a model has them.
_SEQUENCES = ("input_ids", "input_values", "input_features")

_REFUSALS = (ValueError, TypeError, KeyError, IndexError, RuntimeError, PipelineException)
_USUAL_STRIDE = 256  # of the pipeline for questions about documents
# A row has no length after its run: the frames of its padding would be read as speech.
_NEVER_PADDED = frozenset({"automatic-speech-recognition"})
_OF_INPUTS = frozenset({"candidate_labels", "return_duration"})
"""Parameters that a conversion of the input has taken."""
# Each has noise and a length of its own, and padding changes the end of a shorter sound.
_ALONE = frozenset({"text-to-audio"})
_LABELS_OF_FIRST = frozenset({"zero-shot-image-classification", "zero-shot-audio-classification"})


class RunnablePipeline:
    """Implement TaskPipeline with a pipeline of transformers, and run its batches."""

    def __init__(self, pipeline: Pipeline, task: str) -> None:
        self._pipeline = pipeline
        self._task = task
        # A tokenizer keeps its padding and truncation in itself while it tokenizes: one thread at a time.
        self._lock = threading.Lock() if pipeline.tokenizer is not None else nullcontext()
        self.pads = False
        """Whether items of different lengths share a run: padding changes none of their outputs."""
        self.shares = False
        """Whether items share a run at all."""
        self._collate = _collate_of(pipeline)
        positions = getattr(self.config, "max_position_embeddings", None)
        if pipeline.tokenizer is not None and isinstance(positions, int) and positions > 0:
            # A tokenizer without a limit of its own says about 1e30.
            pipeline.tokenizer.model_max_length = min(pipeline.tokenizer.model_max_length, positions)
        self.max_tokens: int | None = None
        """Of one row; None where nothing bounds it."""
        self.mask_token: str | None = getattr(pipeline.tokenizer, "mask_token", None)
        self.runs_alone = task in _ALONE
        """Whether no item ever shares a run."""
        self.trial_text: str | None = getattr(pipeline, "trial_text", None)
        """In place of the texts of the trial, for a model that reads no English."""

    @property
    def config(self) -> Any:
        """The configuration of the model, of transformers."""
        return self._pipeline.model.config

    def limit_tokens(self, max_tokens: int) -> None:
        """Cut texts at a number of tokens where a pipeline cuts them, and refuse longer ones elsewhere."""
        tokenizer = self._pipeline.tokenizer
        assert tokenizer is not None
        self.max_tokens = min(max_tokens, tokenizer.model_max_length)
        tokenizer.model_max_length = self.max_tokens

    def prepare(self, task_input: dict[str, Any], parameters: dict[str, Any]) -> list[TaskItem]:
        """As TaskPipeline.prepare."""
        own = dict(parameters)
        given = pipeline_input(self._task, self._pipeline, task_input, own)
        with self._lock, refusals():
            self._check_parts(given, own)
            return self._items(given, own)

    def finish(self, outputs: Sequence[Any], parameters: dict[str, Any]) -> Any:
        """As TaskPipeline.finish."""
        own = {name: value for name, value in parameters.items() if name not in _OF_INPUTS}
        # Pipelines divide by the largest number of an output, which may be 0.
        with self._lock, refusals(), np.errstate(divide="ignore", invalid="ignore"):
            return as_json(self._postprocessed(outputs, own))

    def run(self, items: Sequence[TaskItem]) -> list[Any]:
        """Return the outputs of items of one shape, in order. Raises the errors of torch."""
        inputs, forward_parameters = [item.value[0] for item in items], items[0].value[1]
        batch = inputs[0] if len(inputs) == 1 else self._collate(inputs)
        outputs = PipelineIterator([batch], self._pipeline.forward, forward_parameters, len(inputs))
        found = list(outputs)
        if len(found) != len(items):
            raise RuntimeError(f"expected {len(items)} outputs of the pipeline, got {len(found)}")
        return found

    def _check_parts(self, given: Any, parameters: Mapping[str, Any]) -> None:
        """Bound the parts of a long text before it is cut. Raises InvalidInput.

        The pipeline for questions about texts does so itself.
        """
        tokenizer = self._pipeline.tokenizer
        if self._task == "token-classification" and parameters.get("stride") is not None:
            available = tokenizer.model_max_length - tokenizer.num_special_tokens_to_add()
            text = given if isinstance(given, str) else " ".join(given)
            stride, size = parameters["stride"], tokenizer.model_max_length
            check_parts(self._count(text), available, stride, size, field="text", shared_field="parameters.stride")
        elif self._task == "document-question-answering":
            size = parameters.get("max_seq_len") or tokenizer.model_max_length
            available = size - tokenizer.num_special_tokens_to_add(pair=True) - self._count(given["question"])
            if available < 1:
                raise InvalidInput("question", f"expected fewer tokens than {size}, got more; shorten it")
            stride = parameters.get("doc_stride")
            stride = min(size // 2, _USUAL_STRIDE) if stride is None else stride
            words = " ".join(word for word, _ in given["word_boxes"])
            check_parts(
                self._count(words), available, stride, size, field="word_boxes", shared_field="parameters.doc_stride"
            )

    def _count(self, text: str) -> int:
        """Return the tokens of a text without special ones."""
        tokenizer = self._pipeline.tokenizer
        # Those of documents read words with boxes, and no texts.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return len(tokenizer.tokenize(text))
        # The backend keeps the truncation and padding of its last call. The next call sets both again.
        backend.no_truncation()
        backend.no_padding()
        return len(backend.encode(text, add_special_tokens=False).ids)

    def _items(self, given: Any, parameters: dict[str, Any]) -> list[TaskItem]:
        pipeline = self._pipeline
        preprocess, forward, _ = pipeline._sanitize_parameters(**parameters)
        prepared = pipeline.preprocess(given, **{**pipeline._preprocess_params, **preprocess})
        forward = {**pipeline._forward_params, **forward}
        rows = list(prepared) if isinstance(pipeline, ChunkPipeline) else [prepared]
        # Their pipelines compare all inputs of a batch with the labels of the first one.
        labels = repr(sorted(parameters.items())) if self._task in _LABELS_OF_FIRST else ""
        return [self._item(row, forward, labels) for row in rows]

    def _postprocessed(self, outputs: Sequence[Any], parameters: dict[str, Any]) -> Any:
        pipeline = self._pipeline
        _, _, postprocess = pipeline._sanitize_parameters(**parameters)
        parameters = {**pipeline._postprocess_params, **postprocess}
        # Some pipelines remove members of an output.
        copies = [_copied(output) for output in outputs]
        return pipeline.postprocess(copies if isinstance(pipeline, ChunkPipeline) else copies[0], **parameters)

    def _item(self, row: Any, forward_parameters: dict[str, Any], labels: str) -> TaskItem:
        tensors = dict(_tensors(row))
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        if "input_values" in tensors:
            check_frames(self._pipeline.model, tensors["input_values"])
        if isinstance(row, dict):
            nbytes += row.get("shared_bytes", 0)
        sequence = next((tensors[name] for name in _SEQUENCES if name in tensors), None)
        length = 0
        if sequence is not None and sequence.ndim > 1:
            length = sequence.shape[1]
            if self.max_tokens is not None and length > self.max_tokens and sequence is tensors.get("input_ids"):
                raise InvalidInput("text", f"expected at most {self.max_tokens} tokens, got {length}; shorten it")
        cost = max(1, length or max((tensor.numel() for tensor in tensors.values()), default=1))
        num_tokens = length if "input_ids" in tensors else 0
        shape = self._shape(row, tensors, length, forward_parameters)
        return TaskItem((row, forward_parameters), cost, shape and (*shape, labels), nbytes, num_tokens)

    def _shape(
        self, row: Any, tensors: Mapping[str, torch.Tensor], length: int, forward_parameters: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Return what the items of one run have in common; None where the row is no batch of one."""
        if not self.shares or not tensors or any(tensor.shape[:1] != (1,) for tensor in tensors.values()):
            return None
        shapes: list[tuple[Any, ...]] = []
        for name in sorted(row):
            tensor = tensors.get(name)
            if tensor is None:
                shapes.append((name, type(row[name]).__name__))
                continue
            dimensions = tuple(tensor.shape[1:])
            if self.pads and self._task not in _NEVER_PADDED and length and dimensions[:1] == (length,):
                dimensions = (-1, *dimensions[1:])
            shapes.append((name, str(tensor.dtype), dimensions))
        return (*shapes, repr(sorted(forward_parameters.items())))


@contextmanager
def refusals() -> Iterator[None]:
    """Raise InvalidInput for what a pipeline raises.

    The parameters have the types and bounds of the task; a pipeline refuses what the model cannot do.
    """
    try:
        yield
    except RoundhouseError:
        raise
    except BaseException as error:
        # A tokenizer ends with a panic, which is no Exception.
        if isinstance(error, _REFUSALS) or type(error).__name__ == "PanicException":
            raise InvalidInput("parameters", f"expected values that the model accepts; {_first_line(error)}") from error
        raise


def _collate_of(pipeline: Pipeline) -> Any:
    """Return the function that makes a batch of prepared inputs, as a pipeline of transformers does."""
    extractor = pipeline.feature_extractor if pipeline.feature_extractor is not None else pipeline.image_processor
    try:
        return pad_collate_fn(pipeline.tokenizer, extractor)
    except ValueError:
        # Without padding: only items of one shape are collated, or none.
        return pad_collate_fn(None, extractor) if extractor is not None else no_collate_fn


def _tensors(row: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(row, torch.Tensor):
        yield "", row
    elif hasattr(row, "items"):
        for name, value in row.items():
            if isinstance(value, torch.Tensor):
                yield name, value


def _copied(output: Any) -> Any:
    return output.__class__(output) if hasattr(output, "items") else output


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
