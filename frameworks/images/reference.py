"""Prepare images with the image processor of transformers, where our own does not know its class.

Our decoding and bounds run before it. Runs at load show the tensors that it makes of one image. They are packed into
one row of float32, so that images are batched as those of our own processor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.images.decode import DEFAULT_BOUNDS, ImageBounds, check_header, decode_rgb
from frameworks.images.processor import Array, ImageProcessor
from frameworks.images.processor_config import knows_class, read_preparation, read_processor_file
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.images.types import ImageHeader

_TRIALS = ((64, 48), (40, 72), (50, 50))
"""Sizes of images that must give tensors of one shape."""
_MAX_SIDE = 4096
_MAX_ROW_NUMBERS = 3 * _MAX_SIDE * _MAX_SIDE
_SIZES = ("size", "crop_size", "pad_size", "patch_size")
_MAX_RESIZED_PIXELS = 50_000_000
_MARGIN = 2
"""Processors resize to somewhat more than their shortest edge before they crop."""
_USUAL_SIDE = 224


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the row of an image, without the axis of images. `is_integer`: the model reads integers."""

    name: str
    shape: tuple[int, ...]
    is_integer: bool


class ReferenceProcessor(ImageProcessor):
    """Prepares images with an image processor of transformers. Any thread may call it."""

    def __init__(self, processor: Any, source: str, bounds: ImageBounds = DEFAULT_BOUNDS) -> None:
        """`source`: names the file in errors. Raises InvalidModel."""
        self._processor = processor
        self._source = source
        self._edge = _edge(processor)
        self.parts = self._tried()
        shapes = [part.shape for part in self.parts]
        self._shape = shapes[0] if len(shapes) == 1 else (sum(map(prod, shapes)),)
        if prod(self._shape) > _MAX_ROW_NUMBERS:
            raise InvalidModel(
                f"{source}: size: expected at most {_MAX_ROW_NUMBERS} numbers for an image, got {prod(self._shape)}; "
                "correct it"
            )
        self.height, self.width = self._sides()
        self.layout = "nchw"
        self.dtype = np.dtype(np.float32)
        self.row_bytes = prod(self._shape) * self.dtype.itemsize
        self.check = partial(check_header, bounds=bounds)

    def empty(self, rows: int) -> Array:
        """As ImageProcessor.empty; several tensors are one axis."""
        return np.empty((rows, *self._shape), self.dtype)

    def read(self, data: bytes, header: ImageHeader, field: str, row: Array) -> None:
        """As ImageProcessor.read."""
        self.prepare(decode_rgb(data, header, field), field, row)

    def prepare(self, image: Image.Image, field: str, row: Array) -> None:
        """As ImageProcessor.prepare."""
        if self._edge * self._edge * max(image.size) * _MARGIN > _MAX_RESIZED_PIXELS * min(image.size):
            raise InvalidInput(
                field,
                f"expected at most {_MAX_RESIZED_PIXELS} pixels after resizing, got an image of {image.width} x "
                f"{image.height}; cut the image",
            )
        try:
            tensors = self._run(image)
        except Exception as error:  # noqa: BLE001 - processors raise many types for images that they cannot prepare
            raise InvalidInput(
                field,
                f"expected an image that the model's processor accepts, got {image.width} x {image.height} "
                f"({type(error).__name__}); resize it",
            ) from None
        flat, start = row.reshape(-1), 0
        for part in self.parts:
            tensor = tensors.get(part.name)
            if tensor is None or tensor.shape != part.shape:
                found = "none" if tensor is None else str(list(tensor.shape))
                raise InvalidInput(
                    field,
                    f"expected an image that becomes {part.name} of {list(part.shape)}, got {found} from "
                    f"{image.width} x {image.height}; resize it",
                )
            end = start + tensor.size
            flat[start:end] = tensor.reshape(-1)
            start = end

    def _run(self, image: Image.Image) -> dict[str, Array]:
        """Return the tensors of one image, without the axis of images."""
        made: Mapping[str, Any] = self._processor(images=image, return_tensors="np")
        return {name: np.asarray(tensor)[0] for name, tensor in made.items()}

    def _tried(self) -> tuple[Part, ...]:
        """Return the tensors of an image. Raises InvalidModel where they depend on its size."""
        found: list[tuple[Part, ...]] = []
        for size in _TRIALS:
            try:
                made = self._run(Image.new("RGB", size))
            except Exception as error:
                raise InvalidModel(
                    f"{self._source}: the image processor does not run: {type(error).__name__}: {_first_line(error)}"
                ) from error
            found.append(
                tuple(Part(name, each.shape, np.issubdtype(each.dtype, np.integer)) for name, each in made.items())
            )
        if len(set(found)) > 1:
            shapes = " and ".join(str(list(shape)) for shape in sorted({parts[0].shape for parts in found})[:2])
            raise InvalidModel(
                f"{self._source}: image_processor_type: expected one that prepares all images in one size, got "
                f"{_name(self._processor)}, which makes {shapes}; set do_center_crop with a crop_size if it has them"
            )
        return found[0]

    def _sides(self) -> tuple[int, int]:
        """Return height and width: of the pixels, else of an image that fills a row of patches or colours."""
        if len(self._shape) == 3 and self._shape[0] == 3:
            return self._shape[1], self._shape[2]
        size = getattr(self._processor, "size", None)
        height, width = getattr(size, "height", None), getattr(size, "width", None)
        if height and width:
            return height, width
        patches = getattr(self._processor, "max_num_patches", None)
        side = isqrt(patches) * self._processor.patch_size if patches else _USUAL_SIDE
        return side, side


def open_processor(folder: Path, model_type: str = "") -> ImageProcessor | None:
    """Return what prepares the images of a PyTorch model; None without a file that describes it.

    `model_type`: for a file without a class. Raises InvalidModel.
    """
    if not knows_class(folder, model_type):
        return open_reference(folder)
    preparation = read_preparation(folder, model_type)
    if preparation is None:
        return None
    if preparation.output_size is None:
        raise InvalidModel(
            f"{folder / PREPROCESSOR_FILE}: do_resize: expected true, or do_center_crop with a crop_size, so "
            "that all images have one size, got neither; correct it"
        )
    return ImageProcessor(preparation, preparation.output_size)


def open_reference(folder: Path) -> ReferenceProcessor:
    """Return the image processor of transformers for a folder. Raises InvalidModel."""
    file, config = read_processor_file(folder)
    _check_sizes(file, config)
    named = config.get("image_processor_type") or config.get("feature_extractor_type") or "none"
    if find_spec("transformers") is None:
        raise InvalidModel(
            f"{file}: image_processor_type: expected transformers for {named}, got an installation without it; "
            "install transformers, or describe the steps in the table image"
        )
    # It takes seconds, and most folders need none of it.
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # transformers raises many types; all of them mean that the images cannot be prepared.
        raise InvalidModel(
            f"{file}: image_processor_type: expected one that transformers loads here, got {named} "
            f"({type(error).__name__}: {_first_line(error)}); save another image processor beside the model"
        ) from error
    return ReferenceProcessor(processor, str(file))


def _check_sizes(file: Path, config: dict[str, Any]) -> None:
    """Raise InvalidModel for sizes whose images would not fit into memory."""
    for key in _SIZES:
        value = config.get(key)
        sides = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any(isinstance(side, int | float) and not 0 <= side <= _MAX_SIDE for side in sides):
            raise InvalidModel(f"{file}: {key}: expected integers from 1 to {_MAX_SIDE}, got {value}; correct it")
    patches = config.get("max_num_patches") or 0
    if isinstance(patches, int) and patches > _MAX_SIDE:
        raise InvalidModel(f"{file}: max_num_patches: expected at most {_MAX_SIDE}, got {patches}; correct it")


def _edge(processor: Any) -> int:
    """Return the side to which images of any shape are resized before they are cropped; 0 without one."""
    edge = getattr(getattr(processor, "size", None), "shortest_edge", None)
    return edge if isinstance(edge, int) else 0


def _name(processor: Any) -> str:
    return type(processor).__name__.removesuffix("Pil")


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:200] if lines else ""
