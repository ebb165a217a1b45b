"""Settings of the images that an ONNX model reads: `[models.onnx_models.image]`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo

from memory.settings import SETTINGS_RULES

MAX_SIDE = 4096
"""Pixels of one side of a model's input."""
_MAX_LABELS = 1_000_000

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Scale = Annotated[float, Field(strict=False)]
Labels = Annotated[tuple[str, ...], Field(strict=False)]
Channels = Annotated[tuple[Scale, Scale, Scale], Field(strict=False)]


def _as_sides(value: object) -> object:
    """Return one side as the two sides of a square."""
    return (value, value) if type(value) is int else value


def _checked_labels(value: object) -> object:
    """Return labels, or the name of their file. Raises ValueError."""
    if isinstance(value, str):
        path = Path(value)
        if not value or path.is_absolute() or ".." in path.parts or "\0" in value:
            raise ValueError('expected a file in the folder of the graph, like "labels.txt", or a list of labels')
    elif isinstance(value, list | tuple) and not 1 <= len(value) <= _MAX_LABELS:
        raise ValueError(f"expected 1 to {_MAX_LABELS} labels, in the order of the output")
    return value


def _without_zero(value: tuple[float, ...]) -> tuple[float, ...]:
    if min(value) <= 0:
        raise ValueError("expected three numbers above 0, as each channel is divided by its own")
    return value


def _beside_edge(value: tuple[int, int] | None, info: ValidationInfo) -> tuple[int, int] | None:
    """Return the value of `size`. Raises ValueError for two sides of a shortest edge."""
    if value is not None and info.data.get("resize") == "shortest_edge" and value[0] != value[1]:
        raise ValueError('expected one integer beside resize = "shortest_edge"')
    return value


class ImageSettings(BaseModel):
    """One `[models.onnx_models.image]` table: how pixels become the input of the graph."""

    model_config = SETTINGS_RULES

    resize: Literal["exact", "shortest_edge", "none"] = "exact"
    """How an image is resized: `"exact"` to both sides of `size`; `"shortest_edge"` so that its shorter side is
    `size`; `"none"` not at all."""
    size: (
        Annotated[tuple[Side, Side], Field(strict=False), BeforeValidator(_as_sides), AfterValidator(_beside_edge)]
        | None
    ) = None
    """Size after resizing, in pixels: an integer, or `[height, width]`. None: the size of the graph's input."""
    crop: Annotated[tuple[Side, Side], Field(strict=False), BeforeValidator(_as_sides)] | None = None
    """Size of the part that is cut from the centre after resizing: an integer, or `[height, width]`. None: the size of
    the graph's input, if `resize` is not `"exact"`."""
    resample: Resample = "bilinear"
    """Filter of the resizing: `"nearest"`, `"box"`, `"bilinear"`, `"hamming"`, `"bicubic"` or `"lanczos"`."""
    rescale_factor: Annotated[float, Field(strict=False)] = 1 / 255
    """Factor of the pixels, which are from 0 to 255, before `mean` and `std` are applied."""
    mean: Channels = (0.0, 0.0, 0.0)
    """Subtracted from each channel: red, green, blue."""
    std: Annotated[Channels, AfterValidator(_without_zero)] = (1.0, 1.0, 1.0)
    """Each channel is divided by it: red, green, blue."""
    layout: Literal["nchw", "nhwc"] | None = None
    """Order of the axes of the graph's input: `"nchw"` (rows, channels, height, width) or `"nhwc"`. None: as the shape
    of the input shows."""
    channel_order: Literal["rgb", "bgr"] = "rgb"
    """Order of the channels in the graph's input. `mean` and `std` stay in the order red, green, blue."""
    labels: Annotated[str | Labels | None, BeforeValidator(_checked_labels)] = None
    """Labels of a classifier in the order of its output: a list, or a text file with a label in each line, in the
    folder of the graph. None: those of `config.json` or `labels.txt` in that folder."""
