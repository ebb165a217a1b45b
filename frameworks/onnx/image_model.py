"""ONNX graphs that read images: find the input of the pixels, their preparation, and the output of the answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from PIL import Image

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.images import ImageSettings
from frameworks.images.labels import read_label_file, read_labels
from frameworks.images.processor import Dtype, ImageProcessor, Layout, Preparation
from frameworks.images.processor_config import knows_class, read_preparation
from frameworks.images.spec import ImageSpec
from frameworks.onnx.model import OnnxModel
from frameworks.types import ModelSpec, Task, TensorType, ValueSpec

log = structlog.get_logger(__name__)

_DTYPES: dict[str, Dtype] = {"float32": "float32", "float16": "float16", "uint8": "uint8"}
_FLOATS = ("float32", "float16")
_EMBEDDINGS = (
    "image_embeds",
    "image_embeddings",
    "image_features",
    "pooler_output",
    "sentence_embedding",
    "embeddings",
)
_HIDDEN_STATES = "last_hidden_state"
_CLASSIFIES = "ForImageClassification"


@dataclass(frozen=True, slots=True)
class _PixelInput:
    """The input of a graph that holds pixels. `height`, `width`: -1 where they are free."""

    name: str
    layout: Layout
    height: int
    width: int
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class _ImageHead:
    """The output of a task."""

    task: Task
    output: str = ""
    labels: tuple[str, ...] = ()
    size: int | None = None
    pooling: Literal["none", "cls"] = "none"


def declare_images(
    instances: Sequence[OnnxModel], entry: OnnxModelEntry, folder: Path, activations: Collection[str]
) -> bool:
    """Let the instances read images, as the entry or the files beside the graph say. Return whether they do.

    `activations`: values that are probabilities already. Raises InvalidModel for an entry that does not fit the graph,
    and for broken files. Files that do not fit are named in the log, and tensors are served.
    """
    settings, spec = entry.image, instances[0].spec
    try:
        config = read_json(folder / "config.json")
        pixels = _pixel_input(spec, settings)
        processor = _processor(settings, pixels, folder, str(config.get("model_type") or ""))
        head = _head(spec, settings, folder)
    except InvalidModel as error:
        if settings is not None:
            raise InvalidModel(f"{folder}: {error.message}") from error
        log.warning("images are not served, only tensors", model=entry.name, reason=error.message)
        return False
    image = ImageSpec(
        pixels.name,
        processor.height,
        processor.width,
        head.labels,
        # The softmax of a single label would be 1, whatever its logit.
        config.get("problem_type") == "multi_label_classification" or len(head.labels) == 1,
        embedding_size=head.size,
        output_name=head.output,
        pooling=head.pooling,
        gives_probabilities=head.output in activations,
    )
    for each in instances:
        each.declare_images(processor, head.task, image)
    return True


def _pixel_input(spec: ModelSpec, settings: ImageSettings | None) -> _PixelInput:
    """Return the input of the pixels. Raises InvalidModel."""
    required = [each for each in spec.inputs if each.required]
    if len(required) == 1 and isinstance(required[0].type, TensorType):
        [value], kind = required, required[0].type
        shape = kind.shape or (-1, -1, -1, -1)
        layout = (settings and settings.layout) or ("nhwc" if len(shape) == 4 and shape[1] != 3 == shape[3] else "nchw")
        if len(shape) == 4 and kind.dtype in _DTYPES and shape[0] in (-1, 1):
            channels, height, width = shape[1:] if layout == "nchw" else (shape[3], shape[1], shape[2])
            if channels in (-1, 3):
                return _PixelInput(value.name, layout, height, width, _DTYPES[kind.dtype])
    inputs = ", ".join(f"{each.name} ({each.type}, {each.shape})" for each in required)
    raise InvalidModel(
        "image: expected a graph with one required input of float32, float16 or uint8, with any number of rows or one, "
        f"and three channels, got {inputs or 'none'}; send tensors to this graph"
    )


def _processor(settings: ImageSettings | None, pixels: _PixelInput, folder: Path, model_type: str) -> ImageProcessor:
    """Return what prepares the images: of the entry, else of the file. Raises InvalidModel."""
    if settings is None and not knows_class(folder, model_type):
        # A server whose folders our own processor reads never imports transformers.
        from frameworks.images.reference import open_reference

        reference = open_reference(folder)
        if (pixels.layout, pixels.dtype) != ("nchw", "float32") or len(reference.empty(0).shape) != 4:
            made = ", ".join(part.name for part in reference.parts)
            raise InvalidModel(
                "image: expected a graph of float32 [n, 3, height, width] and a processor of pixels, got "
                f"{pixels.dtype} in {pixels.layout} and {made}; describe the steps in the table image"
            )
        _check_size((reference.height, reference.width), pixels)
        return reference
    preparation = _preparation(settings, pixels, folder, model_type)
    return ImageProcessor(
        preparation,
        _size(preparation, pixels),
        pixels.layout,
        "rgb" if settings is None else settings.channel_order,
        pixels.dtype,
    )


def _preparation(settings: ImageSettings | None, pixels: _PixelInput, folder: Path, model_type: str) -> Preparation:
    """Return the steps of the entry, else those of the file. Raises InvalidModel."""
    if settings is None:
        preparation = read_preparation(folder, model_type)
        assert preparation is not None, "the file is in the folder"
        return preparation
    own = (pixels.height, pixels.width) if min(pixels.height, pixels.width) > 0 else None
    size, crop, edge = settings.size or own, settings.crop, None
    if settings.resize != "exact":
        edge = size[0] if size is not None and settings.resize == "shortest_edge" else None
        size, crop = None, crop or own
    if settings.resize != "none" and edge is None and size is None:
        raise InvalidModel("image.size: expected a size, as that of the graph's input is free; set it")
    return Preparation(
        edge,
        size,
        crop,
        Image.Resampling[settings.resample.upper()],
        settings.rescale_factor,
        settings.mean,
        settings.std,
    )


def _size(preparation: Preparation, pixels: _PixelInput) -> tuple[int, int]:
    """Return height and width of the prepared images. Raises InvalidModel where the graph has another size."""
    size = preparation.output_size
    if size is None:
        raise InvalidModel("image.crop: expected a size, as that of the graph's input is free; set it")
    _check_size(size, pixels)
    return size


def _check_size(size: tuple[int, int], pixels: _PixelInput) -> None:
    if pixels.height not in (-1, size[0]) or pixels.width not in (-1, size[1]):
        raise InvalidModel(
            f"image: expected prepared images of {pixels.height} x {pixels.width} (height x width), as the graph's "
            f'input "{pixels.name}" has, got {size[0]} x {size[1]}; make them agree'
        )


def _head(spec: ModelSpec, settings: ImageSettings | None, folder: Path) -> _ImageHead:
    """Return the output that answers requests for images. Raises InvalidModel."""
    floats = [each for each in spec.outputs if isinstance(each.type, TensorType) and each.type.dtype in _FLOATS]
    flat = {each.name: each for each in floats if each.shape is not None and _is_flat(each.shape)}
    config = read_json(folder / "config.json")
    architectures = config.get("architectures") or [""]
    is_classifier = _CLASSIFIES in str(architectures[0] if isinstance(architectures, list) else "")
    embedding = next((flat[name] for name in _EMBEDDINGS if name in flat), None)
    labels = _given_labels(settings, folder)
    if labels or is_classifier or embedding is None or "logits" in flat:
        labels = labels or read_labels(folder)
        logits = flat.get("logits") or next(iter(flat.values()), None)
        if logits is not None and (labels or is_classifier):
            return _ImageHead(
                "classify", logits.name, _fitting(labels, logits, settings is not None and settings.labels)
            )
    if embedding is not None:
        return _ImageHead("embed", embedding.name, size=_columns(embedding))
    hidden = next((each for each in floats if each.name == _HIDDEN_STATES and len(each.shape or ()) == 3), None)
    if hidden is not None:
        return _ImageHead("embed", hidden.name, size=_columns(hidden), pooling="cls")
    return _ImageHead("tensor")


def _given_labels(settings: ImageSettings | None, folder: Path) -> tuple[str, ...]:
    if settings is None or settings.labels is None:
        return ()
    return read_label_file(folder / settings.labels) if isinstance(settings.labels, str) else settings.labels


def _fitting(labels: tuple[str, ...], logits: ValueSpec, are_given: object) -> tuple[str, ...]:
    """Return the labels, or LABEL_0, LABEL_1, … if the graph has another number of them. Raises InvalidModel."""
    columns = _columns(logits)
    if columns is None or columns == len(labels):
        if labels:
            return labels
        raise InvalidModel(f'image.labels: expected labels, as the number in "{logits.name}" is free; set them')
    if are_given:
        raise InvalidModel(
            f'image.labels: expected {columns} labels, as many as "{logits.name}" has numbers, got {len(labels)}; '
            "correct them"
        )
    return tuple(f"LABEL_{number}" for number in range(columns))


def _is_flat(shape: tuple[int, ...]) -> bool:
    """Whether the output has one vector for each image: [n, size], or [n, size, 1, 1] as of a pooling."""
    return len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))


def _columns(value: ValueSpec) -> int | None:
    shape = value.shape or (-1,)
    size = shape[-1] if len(shape) != 4 else shape[1]
    return size if size > 0 else None
