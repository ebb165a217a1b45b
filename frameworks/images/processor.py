"""Turn an image into the input of a model: resize, crop, rescale and normalise, as transformers' image processors do.

Pillow resizes 8-bit pixels, as it does for them. Only the part that the crop keeps is computed. The numbers of a
channel are looked up in a table of 256, so they are exactly those of the reference for the same pixels.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from PIL import Image

from frameworks.core.errors import InvalidInput
from frameworks.images.decode import DEFAULT_BOUNDS, ImageBounds, check_header, decode_rgb
from frameworks.images.types import ImageHeader

Array = np.ndarray[Any, np.dtype[Any]]
Channels = tuple[float, float, float]
Layout = Literal["nchw", "nhwc"]
Dtype = Literal["float32", "float16", "uint8"]

_DTYPES: dict[Dtype, np.dtype[Any]] = {
    "float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "uint8": np.dtype(np.uint8),
}  # fmt: skip
# Filters whose weights are continuous: a rounded position changes a pixel by at most one level.
_CONTINUOUS = (
    Image.Resampling.BILINEAR,
    Image.Resampling.HAMMING,
    Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS,
)
_MAX_RESIZED_PIXELS = 50_000_000
_LEVELS = np.arange(256)


@dataclass(frozen=True, slots=True)
class Preparation:
    """The steps from decoded pixels to numbers, in this order.

    `shortest_edge`: size of the shorter side after resizing. `size`: (height, width) after resizing; at most one of the
    two is given. `crop`: (height, width) of the part in the centre; a smaller image is padded with black.
    `rescale_factor`: of pixels from 0 to 255. `mean`, `std`: by channel red, green, blue.
    """

    shortest_edge: int | None = None
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample: Image.Resampling = Image.Resampling.BILINEAR
    rescale_factor: float = 1.0
    mean: Channels = (0.0, 0.0, 0.0)
    std: Channels = (1.0, 1.0, 1.0)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every prepared image; None where it depends on the image."""
        return self.crop or self.size


class ImageProcessor:
    """Prepares images for one model. Any thread may call it."""

    def __init__(
        self,
        preparation: Preparation,
        size: tuple[int, int],
        layout: Layout = "nchw",
        channel_order: Literal["rgb", "bgr"] = "rgb",
        dtype: Dtype = "float32",
        bounds: ImageBounds = DEFAULT_BOUNDS,
    ) -> None:
        """`size`: (height, width) of the model's input. A uint8 input gets the pixels as they are, not normalised."""
        self.preparation = preparation
        self.height, self.width = size
        self.layout = layout
        self.dtype = _DTYPES[dtype]
        self._channels = (0, 1, 2) if channel_order == "rgb" else (2, 1, 0)
        self.row_bytes = 3 * self.height * self.width * self.dtype.itemsize
        """Size of the row of one image."""
        self.check = partial(check_header, bounds=bounds)
        """Return the header of a file, by its bytes and its field. Takes some microseconds. Raises InvalidInput."""

    def empty(self, rows: int) -> Array:
        """Return memory for the rows of so many images."""
        sides = (3, self.height, self.width) if self.layout == "nchw" else (self.height, self.width, 3)
        return np.empty((rows, *sides), self.dtype)

    def read(self, data: bytes, header: ImageHeader, field: str, row: Array) -> None:
        """Decode a file that was checked, and write its numbers into `row`, one of `empty`. Raises InvalidInput."""
        self.prepare(decode_rgb(data, header, field), field, row)

    def prepare(self, image: Image.Image, field: str, row: Array) -> None:
        """Write the numbers of an RGB image into `row`. Raises InvalidInput."""
        pixels = np.asarray(self._resized(image, field))
        if pixels.shape[:2] != (self.height, self.width):
            height, width = pixels.shape[:2]
            raise InvalidInput(
                field,
                f"expected {self.width} x {self.height} pixels, as this model does not resize images, got "
                f"{width} x {height}; resize it",
            )
        channels = row if self.layout == "nchw" else np.moveaxis(row, -1, 0)
        for channel, source in zip(channels, self._channels, strict=True):
            np.take(self._tables[source], pixels[:, :, source], out=channel, mode="clip")

    @cached_property
    def _tables(self) -> Array:
        """Return the number of each of 256 levels, by channel: computed in the precision of the reference."""
        levels = np.stack([_LEVELS] * 3)
        if self.dtype == np.uint8:
            return levels.astype(np.uint8)
        plan = self.preparation
        scaled = (levels.astype(np.float64) * plan.rescale_factor).astype(np.float32)
        mean, std = (np.array(each, np.float32)[:, None] for each in (plan.mean, plan.std))
        return ((scaled - mean) / std).astype(self.dtype)

    def _resized(self, image: Image.Image, field: str) -> Image.Image:
        plan = self.preparation
        width, height = self._resized_size(image)
        crop_height, crop_width = plan.crop or (height, width)
        # Floors, also for an image that is smaller than its crop: as the reference.
        left, top = (width - crop_width) // 2, (height - crop_height) // 2
        if (width, height) == image.size:
            whole = image
        elif plan.resample in _CONTINUOUS and left >= 0 and top >= 0:
            across, down = image.width / width, image.height / height
            box = (left * across, top * down, (left + crop_width) * across, (top + crop_height) * down)
            box = (box[0], box[1], min(box[2], image.width), min(box[3], image.height))
            return image.resize((crop_width, crop_height), plan.resample, box)
        elif width * height > _MAX_RESIZED_PIXELS:
            raise InvalidInput(
                field,
                f"expected at most {_MAX_RESIZED_PIXELS} pixels after resizing, got {width} x {height}; cut the image",
            )
        else:
            whole = image.resize((width, height), plan.resample)
        if plan.crop is None:
            return whole
        return whole.crop((left, top, left + crop_width, top + crop_height))

    def _resized_size(self, image: Image.Image) -> tuple[int, int]:
        """Return width and height after resizing."""
        plan = self.preparation
        if plan.size is not None:
            return plan.size[1], plan.size[0]
        if plan.shortest_edge is None:
            return image.size
        short, long = sorted(image.size)
        longer = int(plan.shortest_edge * long / short)
        return (plan.shortest_edge, longer) if image.width <= image.height else (longer, plan.shortest_edge)
