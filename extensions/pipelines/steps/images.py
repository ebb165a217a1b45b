"""Steps over images: decode and resize them, and crop boxes out of them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from extensions.pipelines.kinds import IMAGES, Kind, Values
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import MAX_ROWS, Port, StepFault
from frameworks.core.errors import InvalidInput
from frameworks.types import Array, TensorType

_MAX_PIXELS = 256 * 1024 * 1024
"""Of all decoded images and crops of a step: 768 MiB."""
_BOXES = TensorType("float32", (-1, 4))


class _Pixels:
    """Resizes images to one size, and makes a tensor of them."""

    options = frozenset({"size", "scale", "mean", "std", "layout"})

    def __init__(self, entry: StepEntry) -> None:
        assert entry.size is not None
        self._height, self._width = entry.size
        self._is_nchw = entry.layout != "nhwc"
        self._scale = np.float32(1 / 255 if entry.scale is None else entry.scale)
        self._mean = _channels("mean", entry.mean, 0.0)
        self._std = _channels("std", entry.std, 1.0)
        if not self._std.all():
            raise StepFault("std", "expected numbers other than 0, got 0")

    @property
    def kind(self) -> TensorType:
        size = (self._height, self._width)
        return TensorType("float32", (-1, 3, *size) if self._is_nchw else (-1, *size, 3))

    def tensor(self, images: Sequence[Array]) -> Array:
        """Return float32 [n, 3, height, width], or [n, height, width, 3], of images with pixels."""
        from PIL import Image

        if len(images) * self._height * self._width > _MAX_PIXELS:
            raise InvalidInput(
                "image", f"expected at most {_MAX_PIXELS} resized pixels in one request, got more; send fewer images"
            )
        pixels = np.empty((len(images), self._height, self._width, 3), np.float32)
        for at, image in enumerate(images):
            resized = image
            if image.shape[:2] != (self._height, self._width):
                size = (self._width, self._height)
                resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
            np.multiply(resized, self._scale, out=pixels[at])
        pixels -= self._mean
        pixels /= self._std
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)) if self._is_nchw else pixels


class ImageStep:
    """Decode images. Outputs: `image` (pixels), `sizes` int64 [n, 2] (height and width), and with `size` `pixels`."""

    options: ClassVar = _Pixels.options
    is_slow: ClassVar = True

    def __init__(self, entry: StepEntry) -> None:
        self._pixels = None if entry.size is None else _Pixels(entry)
        _check_has_size(entry)

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"image": Port(IMAGES)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        found: dict[str, Kind] = {"image": IMAGES, "sizes": TensorType("int64", (-1, 2))}
        if self._pixels is not None:
            found["pixels"] = self._pixels.kind
        return found

    def run(self, values: Values) -> Values:
        images = decoded(values["image"])
        sizes = np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2)
        found: Values = {"image": images, "sizes": sizes}
        if self._pixels is not None:
            found["pixels"] = self._pixels.tensor(images)
        return found


class Crop:
    """Crop boxes out of images: `boxes` float32 [k, 4], and `rows` int64 [k], the image of each box.

    Without `rows` all boxes are of the only image. Boxes are cut at the border of their image; one without a pixel
    gets the nearest one. Outputs: `image`, and with `size` `pixels`, a row for each box.
    """

    options: ClassVar = _Pixels.options | {"box_format", "box_units", "max_rows"}
    is_slow: ClassVar = True

    def __init__(self, entry: StepEntry) -> None:
        self._pixels = None if entry.size is None else _Pixels(entry)
        _check_has_size(entry)
        self._format = entry.box_format or "xyxy"
        self._in_fractions = entry.box_units == "fraction"
        self._max_rows = entry.max_rows or MAX_ROWS

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {
            "image": Port(IMAGES),
            "boxes": Port(_BOXES),
            "rows": Port(TensorType("int64", (-1,)), required=False),
        }

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        return {"image": IMAGES} if self._pixels is None else {"image": IMAGES, "pixels": self._pixels.kind}

    def run(self, values: Values) -> Values:
        boxes, rows = values["boxes"], values.get("rows")
        num_images = len(values["image"])
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise InvalidInput("boxes", f"expected 4 numbers for each box, got the shape {list(boxes.shape)}")
        if len(boxes) > self._max_rows:
            raise InvalidInput("boxes", f"expected at most {self._max_rows} boxes, got {len(boxes)}; keep fewer")
        if rows is None:
            if num_images != 1 and len(boxes):
                raise InvalidInput("rows", f"expected the row of each box beside {num_images} images, got none")
            rows = np.zeros(len(boxes), np.int64)
        if rows.shape != boxes.shape[:1] or (rows.size and not (rows.min() >= 0 and rows.max() < num_images)):
            raise InvalidInput("rows", f"expected the row of one of {num_images} images for each box")
        images = decoded(values["image"])
        crops = [self._crop(images[row], box) for row, box in zip(rows.tolist(), boxes.tolist(), strict=True)]
        if sum(crop.shape[0] * crop.shape[1] for crop in crops) > _MAX_PIXELS:
            raise InvalidInput(
                "boxes", f"expected crops of at most {_MAX_PIXELS} pixels together, got more; keep fewer"
            )
        return {"image": crops} if self._pixels is None else {"image": crops, "pixels": self._pixels.tensor(crops)}

    def _crop(self, image: Array, box: list[float]) -> Array:
        height, width = image.shape[:2]
        left, top, right, bottom = box
        if not all(map(np.isfinite, box)):
            raise InvalidInput("boxes", "expected finite numbers, got NaN or an infinity")
        if self._format == "xywh":
            right, bottom = left + right, top + bottom
        elif self._format == "cxcywh":
            left, top, right, bottom = left - right / 2, top - bottom / 2, left + right / 2, top + bottom / 2
        if self._in_fractions:
            left, right, top, bottom = left * width, right * width, top * height, bottom * height
        first_x, last_x = _within(left, right, width)
        first_y, last_y = _within(top, bottom, height)
        return image[first_y:last_y, first_x:last_x]


def decoded(images: Sequence[Any]) -> list[Array]:
    """Return the pixels of images, uint8 [height, width, 3]; files are decoded. Raises InvalidInput."""
    from frameworks.images.decode import decode_image

    found: list[Array] = []
    pixels = 0
    for at, image in enumerate(images):
        each = decode_image(image, f"image[{at}]") if isinstance(image, bytes) else image
        pixels += each.shape[0] * each.shape[1]
        if pixels > _MAX_PIXELS:
            raise InvalidInput("image", f"expected at most {_MAX_PIXELS} pixels in one request, got more; send fewer")
        found.append(each)
    return found


def _within(first: float, last: float, size: int) -> tuple[int, int]:
    """Return the pixels of a range, at least one, within an axis."""
    start = min(max(int(np.floor(first)), 0), size - 1)
    return start, max(start + 1, min(int(np.ceil(last)), size))


def _channels(key: str, given: tuple[float, ...] | None, default: float) -> Array:
    if given is not None and len(given) not in (1, 3):
        raise StepFault(key, f"expected 1 number or 3, one for each channel, got {len(given)}")
    return np.array((default,) if given is None else given, np.float32)


def _check_has_size(entry: StepEntry) -> None:
    for key in ("scale", "mean", "std", "layout"):
        if entry.size is None and getattr(entry, key) is not None:
            raise StepFault(key, "expected size beside it, got none; set size, or remove this key")
