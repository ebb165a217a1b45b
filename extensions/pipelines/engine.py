"""The engine of a pipeline: it decodes requests into values, runs the steps, and answers with the outputs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast

import numpy as np

from extensions.pipelines.checker import Typed
from extensions.pipelines.kinds import PREDICTIONS_VALUE, TEXTS, ImagesType, Kind, PredictionsType
from extensions.pipelines.plan import make_plan
from extensions.pipelines.runs import Runner
from extensions.pipelines.settings import FRAMEWORK
from frameworks.core.errors import Draining, InvalidInput
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.core.vector_search import NamedCollections
from frameworks.engine.contract import EngineRequest, Run, TokenTimes
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.images.encoded import read_encoded
from frameworks.images.spec import ImageRequest, ImageSpec
from frameworks.models.residency.subrequests import SubRequests
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.text.pooling import normalize_rows
from frameworks.text.tokens import TokenAnswer
from frameworks.types import (
    DEFAULT_PRIORITY,
    Answer,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    ModelSpec,
    SentBatch,
    Task,
    TensorBatch,
    TensorType,
    TextRequest,
    TextSpec,
    ValueSpec,
)

_MANY_CHARACTERS = 256 * 1024
"""Of base64: decoding them would block the event loop for about a millisecond."""

_NO_LIMIT = 2**31 - 1
EMBEDDINGS = "embeddings"
"""An only output of this name, float32 [n, size], makes a pipeline of texts a model that embeds them."""


class _Described:
    """Implement Described."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec


class PipelineEngine:
    """Implement Engine. Its requests run as parts in the queues of the models; it has no queue of its own."""

    is_dead: ClassVar = False
    outage: ClassVar = None
    references: ClassVar = 0
    compute_now: ClassVar = None

    def __init__(
        self, typed: Typed, parts: SubRequests, threads: ThreadPoolExecutor, collections: NamedCollections | None = None
    ) -> None:
        """`typed`: a complete pipeline. `parts`: answers requests to its models. `threads`: for slow steps.

        `collections`: those that its steps search; None for a pipeline without such steps.
        """
        self._threads = threads
        self._plan = make_plan(typed)
        self._runner = Runner(typed, self._plan, parts, threads, collections)
        self.model = _Described(_spec_of(typed))
        self._image_inputs = [(name, at) for name, at, kind in self._plan.inputs if isinstance(kind, ImagesType)]
        self._embeddings = _embedding_output(typed)
        self._predictions = _prediction_output(typed)
        self._num_running = 0
        self.has_ended_requests = False
        self._own_limit = RequestLimit("the pipeline", None, None)

    @property
    def is_running(self) -> bool:
        return self._num_running > 0

    @property
    def stats(self) -> list[StepStats]:
        return []

    @property
    def sequences(self) -> SequenceUse:
        return {}

    def lease_body(self, nbytes: int) -> Array | None:
        """Tensors in any memory of this process are not copied."""
        return None

    async def submit(
        self,
        batch: SentBatch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> Outputs:
        """Run tensors without a permit of the caller; requests of clients use `answer`."""
        assert isinstance(batch, TensorBatch), "a pipeline has no tokens"
        permit = Permit(self._own_limit, tenant)
        try:
            begin()
            answer = await self.answer(Run(permit, timings or Timings(), priority), batch)
            assert isinstance(answer, dict)
            return answer
        finally:
            permit.release()

    async def answer(self, run: Run, request: EngineRequest | ImageRequest) -> Answer | TokenAnswer:
        if self.has_ended_requests:
            raise Draining("the pipeline was unloaded; send the request again")
        if run.timings.steps is None:
            run.timings.steps = []
        values: list[Any] = [None] * self._plan.num_values
        if isinstance(request, TensorBatch):
            self._read_tensors(request, values)
            if self._image_inputs:
                await self._read_encoded_images(request, values)
        elif isinstance(request, TextRequest):
            self._read_texts(request, values)
        elif isinstance(request, ImageRequest):
            self._read_images(request, values)
        else:
            raise InvalidInput("model", "expected a model that reads pairs of texts or tokens, got a pipeline")
        self._num_running += 1
        try:
            await self._runner.run(run, values)
        finally:
            self._num_running -= 1
        if isinstance(request, TensorBatch):
            return self._named(values, request.output_names)
        return self._answered(request, values)

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        raise InvalidInput("prompt", "expected a model that generates text, got a pipeline; name another model")

    async def drained(self) -> None:
        """No other process uses the pipeline."""

    async def close(self) -> None:
        """It has nothing to release: the version has waited for its requests."""

    def end_requests(self) -> None:
        self.has_ended_requests = True

    def abort(self, message: str) -> None:
        self.has_ended_requests = True

    def check_integrity(self) -> None:
        assert not self._num_running, f"{self._num_running} requests run in an idle pipeline"

    def _read_tensors(self, request: TensorBatch, values: list[Any]) -> None:
        for name, position, kind in self._plan.inputs:
            value = request.inputs.get(name)
            if value is None:
                raise InvalidInput(f"inputs.{name}", "expected a value, got nothing; send all inputs of the pipeline")
            if isinstance(kind, TensorType) and not (isinstance(value, np.ndarray) and _fits(kind.shape, value.shape)):
                shape = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
                raise InvalidInput(f"inputs.{name}", f"expected the shape {list(kind.shape or ())}, got {shape}")
            values[position] = value

    async def _read_encoded_images(self, request: TensorBatch, values: list[Any]) -> None:
        for name, position in self._image_inputs:
            texts: list[str] = np.ravel(cast("Array", request.inputs[name])).tolist()
            if sum(map(len, texts)) > _MANY_CHARACTERS:
                loop = asyncio.get_running_loop()
                values[position] = await loop.run_in_executor(self._threads, _images, name, texts)
            else:
                values[position] = _images(name, texts)

    def _read_texts(self, request: TextRequest, values: list[Any]) -> None:
        [(_, position, _)] = self._plan.inputs
        if request.token_ids is not None or request.prompt is not None or request.dimensions is not None:
            raise InvalidInput("input", "expected texts without further options for a pipeline, got others; omit them")
        if request.truncate in (False, "left"):
            given = "left" if request.truncate else "false"
            raise InvalidInput("truncate", f"expected no such option for a pipeline, got {given}; set it in its steps")
        texts = np.empty(len(request.texts), dtype=object)
        texts[:] = request.texts
        values[position] = texts

    def _read_images(self, request: ImageRequest, values: list[Any]) -> None:
        [(_, position, _)] = self._plan.inputs
        if request.dimensions is not None:
            raise InvalidInput("dimensions", "expected no such option for a pipeline; omit it")
        values[position] = list(request.images)

    def _answered(self, request: TextRequest | ImageRequest, values: list[Any]) -> Answer:
        """Return the answer to texts or images, in the form of their task."""
        if self._predictions is not None:
            rows = values[self._predictions_at()]
            return ClassifyAnswer(rows if request.top_k is None else [row[: request.top_k] for row in rows])
        if self._embeddings is not None:
            [(_, position, _)] = self._plan.outputs
            rows = values[position]
            return EmbedAnswer(normalize_rows(rows) if request.normalize else rows, tokens=0)
        return self._named(values, request.output_names if isinstance(request, ImageRequest) else None)

    def _predictions_at(self) -> int:
        [(_, position, _)] = self._plan.outputs
        return position

    def _named(self, values: list[Any], names: tuple[str, ...] | None) -> Outputs:
        return {
            name: _as_value(values[position], kind)
            for name, position, kind in self._plan.outputs
            if names is None or name in names
        }


def _fits(wanted: tuple[int, ...] | None, given: tuple[int, ...]) -> bool:
    """Whether a tensor has the declared shape. It runs for each request."""
    if wanted is None:
        return True
    if len(wanted) != len(given):
        return False
    for declared, size in zip(wanted, given, strict=True):  # noqa: SIM110 - a generator would take longer
        if declared not in (-1, size):
            return False
    return True


def _images(name: str, texts: list[str]) -> list[bytes]:
    """Decode images in base64. Raises InvalidInput."""
    return [read_encoded(text, f"inputs.{name}[{at}]") for at, text in enumerate(texts)]


def _as_value(value: Any, kind: Kind) -> Any:
    """Return an output in the form of a Value."""
    return [dict(row) for row in value] if isinstance(kind, PredictionsType) else value


def _spec_of(typed: Typed) -> ModelSpec:
    """Return the spec of a complete pipeline.

    A pipeline of one text or image is a model of task `classify` where its only output is predictions, and of task
    `embed` where it is `embeddings`; else its task is `tensor`. Images are texts in base64 in its inputs.
    """
    inputs = tuple(ValueSpec(name, _input_type(kind)) for name, kind in typed.inputs.items())
    outputs = tuple(
        ValueSpec(name, PREDICTIONS_VALUE if isinstance(kind, PredictionsType) else _value_type(kind))
        for name, kind in typed.outputs.items()
    )
    labels, size = _prediction_output(typed), _embedding_output(typed)
    task: Task = "tensor" if labels is None and size is None else "embed" if labels is None else "classify"
    text = image = None
    [kind, *others] = typed.inputs.values()
    if not others and kind == TEXTS and task != "tensor":
        text = TextSpec(_NO_LIMIT, normalize=False, labels=labels or (), embedding_size=None if size == -1 else size)
    elif not others and isinstance(kind, ImagesType):
        image = _image_spec(next(iter(typed.inputs)), labels or (), size)
    if text is None and image is None:
        task = "tensor"
    return ModelSpec(FRAMEWORK, task, inputs, outputs, "cpu", "float32", 0, text=text, image=image, is_composite=True)


def _prediction_output(typed: Typed) -> tuple[str, ...] | None:
    """Return the labels of the only output, where that is predictions."""
    kinds = list(typed.outputs.values())
    return kinds[0].labels if len(kinds) == 1 and isinstance(kinds[0], PredictionsType) else None


def _embedding_output(typed: Typed) -> int | None:
    """Return the size of the embeddings, -1 where it is free; None for other outputs."""
    if list(typed.outputs) != [EMBEDDINGS]:
        return None
    kind = typed.outputs[EMBEDDINGS]
    if not isinstance(kind, TensorType) or kind.dtype != "float32" or kind.shape is None or len(kind.shape) != 2:
        return None
    return kind.shape[1]


def _input_type(kind: Kind) -> Any:
    return TEXTS if isinstance(kind, ImagesType) else _value_type(kind)


def _value_type(kind: Kind) -> Any:
    assert isinstance(kind, TensorType), f"{kind} is no value of a request"
    return kind


def _image_spec(name: str, labels: tuple[str, ...], size: int | None) -> ImageSpec:
    # Height and width of the steps inside differ: 0 here says that a pipeline takes images of any size.
    return ImageSpec(name, 0, 0, labels=labels, normalize=False, embedding_size=None if size == -1 else size)
