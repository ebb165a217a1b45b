"""Settings of pipelines: `[[pipelines]]`, and the entry of a pipeline among the models."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, PlainValidator

from frameworks.core.names import Aliases, ModelName
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.core.settings.entries import Count
from memory.settings import SETTINGS_RULES

Builtin = Literal[
    "softmax", "top_k", "labels", "normalize", "tokenize", "chunk", "image", "concat", "threshold", "crop"
]
FRAMEWORK = "pipeline"
"""The framework of pipelines, where models have `onnx` or `pytorch`."""
MAX_STEPS = 64
"""Steps of one pipeline."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_NAMES = "1 to 64 letters, digits, `-` and `_`, a letter first"
AUTO = "auto"
"""The type of an input that has the type of the step that reads it."""

Pairs = tuple[tuple[str, str], ...]


def checked_inputs(value: object) -> Pairs:
    """Return the inputs of a pipeline with their types, from a list of names or a table. Raises ValueError."""
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        given = dict.fromkeys(value, AUTO)
        if len(given) != len(value):
            raise ValueError("expected different names")
    elif isinstance(value, dict) and value and all(isinstance(kind, str) for kind in value.values()):
        given = value
    else:
        raise ValueError('expected names like ["text"], or types by name like { x = "float32[-1, 4]" }')
    return _checked_names(given)


def checked_wires(value: object) -> Pairs:
    """Return a table of name → source, such as `step.output`. Raises ValueError."""
    if isinstance(value, dict) and value and all(isinstance(source, str) for source in value.values()):
        return tuple(value.items())
    raise ValueError('expected a table like { text = "text" } or { x = "step.output" }')


def checked_outputs(value: object) -> Pairs:
    """As `checked_wires`, with names that requests may use."""
    return _checked_names(dict(checked_wires(value)))


def checked_types(value: object) -> Pairs:
    """Return a table of name → type. Raises ValueError."""
    if isinstance(value, dict) and value and all(isinstance(kind, str) for kind in value.values()):
        return _checked_names(value)
    raise ValueError('expected a table like { scores = "float32[-1, 3]" }')


def _checked_names(given: dict[str, str]) -> Pairs:
    for name in given:
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected names of {_NAMES}")
    return tuple(given.items())


def checked_name(name: str) -> str:
    """Return the name of a step. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected {_NAMES}")
    return name


def checked_items(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a list that is not empty. Raises ValueError."""
    if not items:
        raise ValueError("expected at least one item")
    return items


def checked_steps(steps: tuple["StepEntry", ...]) -> tuple["StepEntry", ...]:
    """Return the steps of a pipeline. Raises ValueError for none, and for too many."""
    if not 1 <= len(steps) <= MAX_STEPS:
        raise ValueError(f"expected 1 to {MAX_STEPS} steps")
    return steps


_Wires = Annotated[Pairs, PlainValidator(checked_wires), PlainSerializer(dict)]
_Numbers = Annotated[tuple[float, ...], Field(strict=False), AfterValidator(checked_items)]
_Side = Annotated[int, Field(ge=1, le=8192)]


class StepEntry(BaseModel):
    """One `[[pipelines.steps]]` entry: exactly one of `model`, `builtin`, `function` and `collection`."""

    model_config = SETTINGS_RULES

    name: Annotated[str, AfterValidator(checked_name)]
    """Name of the step within the pipeline: letters, digits, `-` and `_`, at most 64; the first is a letter."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Name of a model of the server that the step runs. `tokenize` takes its tokenizer, and `labels` its labels. None:
    the step needs no model."""
    builtin: Builtin | None = None
    """Built-in step: `softmax`, `top_k`, `labels`, `normalize`, `tokenize`, `chunk`, `image`, `concat`, `threshold` or
    `crop`."""
    function: Annotated[str, Field(min_length=1)] | None = None
    """Name of an entry point of the group `roundhouse.steps` of an installed package: a Python function."""
    collection: Annotated[str, Field(min_length=1)] | None = None
    """Name of a collection of the server that the step searches for the records nearest to `vectors`."""
    inputs: _Wires
    """Where the values of the step's inputs come from: an input of the pipeline, `step`, or `step.output`."""
    top_k: Count | None = None
    """`top_k`, `labels` and collections: number of best results for each row. None: all for `labels`, 10 for
    collections."""
    filter: dict[str, Any] | None = None
    """Collections: conditions on the metadata of the records, as of searches. None: all records."""
    labels: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(checked_items)] | None = None
    """`labels`: name of each column of the scores. None: those of `model`."""
    min_score: float | None = None
    """`threshold`: least score of the rows that are kept. None: 0.5."""
    max_rows: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """`threshold`, `chunk`, `crop`: maximum rows of the result. `threshold` keeps the best ones of each row; the others
    refuse a request with more. None: 1000."""
    axis: Annotated[int, Field(ge=-8, le=8)] | None = None
    """`softmax`, `normalize`, `concat`: axis of the tensors. None: the last one."""
    mean: _Numbers | None = None
    """`normalize`, `image`, `crop`: subtracted along the axis, or from each channel, red first. None: nothing."""
    std: _Numbers | None = None
    """`normalize`, `image`, `crop`: divisor of the same values. None: 1."""
    scale: float | None = None
    """`image`, `crop`: factor of the pixels before `mean` and `std`. None: 1/255."""
    size: Annotated[tuple[_Side, _Side], Field(strict=False)] | None = None
    """`image`, `crop`: height and width of the resized pixels. `crop` without it has no tensor of pixels."""
    layout: Literal["nchw", "nhwc"] | None = None
    """`image`, `crop`: order of the axes of the pixels. None: `"nchw"`."""
    box_format: Literal["xyxy", "xywh", "cxcywh"] | None = None
    """`crop`: the four numbers of a box. None: `"xyxy"`, left, top, right and bottom."""
    box_units: Literal["pixels", "fraction"] | None = None
    """`crop`: whether boxes are in pixels of the image, or in fractions of its width and height. None: `"pixels"`."""
    chunk_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """`chunk`: maximum characters of a piece. None: 1000."""
    overlap: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """`chunk`: characters that a piece has in common with the one before it. None: 0."""
    normalize: bool | None = None
    """Embedding models: whether embeddings are L2-normalised. None: as the files of the model say."""
    truncate: bool | None = None
    """Text models and `tokenize`: whether texts are cut at the limit of the model. None: `true`."""
    outputs: Annotated[Pairs, PlainValidator(checked_types), PlainSerializer(dict)] | None = None
    """`function`: the types of its outputs, such as `{ scores = "float32[-1, 3]", texts = "text" }`."""


class PipelineEntry(BaseModel):
    """One `[[pipelines]]` entry: a graph of models and steps that is served like a model."""

    model_config = SETTINGS_RULES

    name: ModelName
    """Name in requests, like that of a model. No model has the same name."""
    aliases: Aliases = ()
    """Further names in requests, at most 64. No model has one of them as its name or alias. Default: none."""
    inputs: Annotated[Pairs, PlainValidator(checked_inputs), PlainSerializer(dict)]
    """Names of the inputs; or a table with their types: `"text"`, `"image"`, a tensor like `"float32[-1, 4]"`, or
    `"auto"` for the type of the step that reads it."""
    outputs: Annotated[Pairs, PlainValidator(checked_outputs), PlainSerializer(dict)]
    """The outputs by name, each from `step` or `step.output`."""
    steps: Annotated[tuple[StepEntry, ...], Field(strict=False), AfterValidator(checked_steps)]
    """The steps, one table each, in any order."""
    max_queue_size: Count | None = None
    """Maximum requests of this pipeline that wait for its load; more are refused with 503. None: only the bound of
    `[scheduling]`."""
    max_concurrent_requests: Count | None = None
    """Maximum requests of this pipeline in progress. None: no bound."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)


class PipelineModelEntry(CompositeModelEntry):
    """A pipeline among the models of the manager."""

    framework: ClassVar[str] = FRAMEWORK
    pipeline: PipelineEntry

    @property
    def models(self) -> frozenset[str]:
        return frozenset(step.model for step in self.pipeline.steps if step.model is not None)

    @property
    def collections(self) -> frozenset[str]:
        return frozenset(step.collection for step in self.pipeline.steps if step.collection is not None)

    @property
    def definition(self) -> dict[str, object]:
        return self.pipeline.model_dump(mode="json")

    @classmethod
    def of(cls, pipeline: PipelineEntry) -> "PipelineModelEntry":
        """Return the entry of a pipeline."""
        return cls(
            name=pipeline.name,
            aliases=pipeline.aliases,
            path=Path("."),
            max_queue_size=pipeline.max_queue_size,
            max_concurrent_requests=pipeline.max_concurrent_requests,
            isolation="none",
            pinned=True,
            pipeline=pipeline,
        )
