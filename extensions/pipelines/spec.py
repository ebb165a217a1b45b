"""Describe a pipeline as a model: its inputs, outputs and task."""

from typing import Any

from extensions.pipelines.checker import Typed
from extensions.pipelines.kinds import PREDICTIONS_VALUE, TEXTS, ImagesType, Kind, PredictionsType
from frameworks.images.spec import ImageSpec
from frameworks.types import ModelSpec, Task, TensorType, TextSpec, ValueSpec

_NO_LIMIT = 2**31 - 1
EMBEDDINGS = "embeddings"
"""An only output of this name, float32 [n, size], makes a pipeline of texts a model that embeds them."""


def spec_of(typed: Typed) -> ModelSpec:
    """Return the spec of a complete pipeline.

    A pipeline of one text or image is a model of task `classify` where its only output is predictions, and of task
    `embed` where it is `embeddings`; else its task is `tensor`. Images are texts in base64 in its inputs.
    """
    inputs = tuple(ValueSpec(name, _input_type(kind)) for name, kind in typed.inputs.items())
    outputs = tuple(
        ValueSpec(name, PREDICTIONS_VALUE if isinstance(kind, PredictionsType) else _value_type(kind))
        for name, kind in typed.outputs.items()
    )
    labels, size = prediction_output(typed), embedding_output(typed)
    task: Task = "tensor" if labels is None and size is None else "embed" if labels is None else "classify"
    text = image = None
    [kind, *others] = typed.inputs.values()
    if not others and kind == TEXTS and task != "tensor":
        text = TextSpec(_NO_LIMIT, normalize=False, labels=labels or (), embedding_size=None if size == -1 else size)
    elif not others and isinstance(kind, ImagesType):
        image = _image_spec(next(iter(typed.inputs)), labels or (), size)
    if text is None and image is None:
        task = "tensor"
    return ModelSpec("pipeline", task, inputs, outputs, "cpu", "float32", 0, text=text, image=image, is_composite=True)


def prediction_output(typed: Typed) -> tuple[str, ...] | None:
    """Return the labels of the only output, where that is predictions."""
    kinds = list(typed.outputs.values())
    return kinds[0].labels if len(kinds) == 1 and isinstance(kinds[0], PredictionsType) else None


def embedding_output(typed: Typed) -> int | None:
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
