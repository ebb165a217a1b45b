"""Read how a model's images are prepared, from the `preprocessor_config.json` of transformers.

Source: transformers' image processors (their classes for Pillow). A field that the file lacks has the default of the
class. A class that is not known is refused by its name: its steps may be others.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from PIL import Image

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_settings
from frameworks.images.processor import Channels, Preparation
from frameworks.images.spec import PREPROCESSOR_FILE

_FILE_OF_SEVERAL = "processor_config.json"

_STANDARD: Channels = (0.5, 0.5, 0.5)
_CLIP_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Channels = (0.26862954, 0.26130258, 0.27577711)
_BILINEAR, _BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
_MAX_SIDE = 4096
# Of settings that are not served, the values without effect. The manual lists every key: docs/model-files.md.
_UNSERVED: dict[str, tuple[object, ...]] = {
    "data_format": ("channels_first",),
    "input_data_format": ("channels_last",),
}
_WARPED_FROM = 384
"""ConvNeXT resizes to this size and above without a crop."""


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Of a class of image processors. `is_square`: whether a size of one integer is that of both sides."""

    size: dict[str, int]
    crop: int | None = None
    resample: Image.Resampling = _BILINEAR
    mean: Channels = _STANDARD
    std: Channels = _STANDARD
    is_square: bool = False
    crops_by_share: bool = False


_CLASSES: dict[str, _Defaults] = {
    "BitImageProcessor": _Defaults({"shortest_edge": 224}, 224, _BICUBIC, _CLIP_MEAN, _CLIP_STD),
    "CLIPImageProcessor": _Defaults({"shortest_edge": 224}, 224, _BICUBIC, _CLIP_MEAN, _CLIP_STD),
    "ConvNextImageProcessor": _Defaults({"shortest_edge": 384}, resample=_BICUBIC, crops_by_share=True),
    "DeiTImageProcessor": _Defaults({"height": 256, "width": 256}, 224, _BICUBIC, is_square=True),
    "MobileNetV1ImageProcessor": _Defaults({"shortest_edge": 256}, 224),
    "MobileNetV2ImageProcessor": _Defaults({"shortest_edge": 256}, 224),
    "SiglipImageProcessor": _Defaults({"height": 224, "width": 224}, resample=_BICUBIC),
    "ViTImageProcessor": _Defaults({"height": 224, "width": 224}, is_square=True),
}
_CLASS_OF_FAMILY = {
    "vit": "ViTImageProcessor", "swin": "ViTImageProcessor", "swinv2": "ViTImageProcessor",
    "resnet": "ConvNextImageProcessor", "convnext": "ConvNextImageProcessor", "convnextv2": "ConvNextImageProcessor",
    "mobilenet_v1": "MobileNetV1ImageProcessor", "mobilenet_v2": "MobileNetV2ImageProcessor",
    "dinov2": "BitImageProcessor", "clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor",
    "deit": "DeiTImageProcessor", "dinov2_with_registers": "BitImageProcessor",
}  # fmt: skip


def read_preparation(folder: Path, model_type: str = "") -> Preparation | None:
    """Return the steps of the file in a folder; None without such a file. `model_type`: for a file without a class.

    Raises InvalidModel for a damaged file, and for steps that are not served.
    """
    file, config = read_processor_file(folder)
    if not config:
        return None
    return _Reader(file, config, _class_of(file, config, model_type)).preparation()


def read_processor_file(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the preparation, and its content; empty without one. Raises InvalidModel."""
    file = folder / PREPROCESSOR_FILE
    config = read_json(file)
    if config:
        return file, config
    file = folder / _FILE_OF_SEVERAL
    nested = read_json(file).get("image_processor")
    return file, nested if isinstance(nested, dict) else {}


def knows_class(folder: Path, model_type: str) -> bool:
    """Whether `read_preparation` knows the class of the file in a folder. True without a file. Raises InvalidModel."""
    _, config = read_processor_file(folder)
    return not config or _name_of(config, model_type)[1] in _CLASSES


def _name_of(config: dict[str, Any], model_type: str) -> tuple[object, str]:
    """Return the class as the file names it, and its name without the kind of its implementation."""
    named = config.get("image_processor_type") or config.get("feature_extractor_type")
    named = _CLASS_OF_FAMILY.get(model_type) if named is None else named
    return named, str(named).removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")


def _class_of(file: Path, config: dict[str, Any], model_type: str) -> str:
    named, name = _name_of(config, model_type)
    if name not in _CLASSES:
        raise InvalidModel(
            f"{file}: image_processor_type: expected one of {', '.join(_CLASSES)}, got {named}; "
            "for an ONNX graph describe its steps in the table image"
        )
    return name


class _Reader:
    """The fields of one file."""

    def __init__(self, file: Path, config: dict[str, Any], name: str) -> None:
        self._file = file
        self._config = config
        self._defaults = _CLASSES[name]

    def preparation(self) -> Preparation:
        """Return the steps. Raises InvalidModel."""
        defaults = self._defaults
        refuse_settings(self._file, self._config, _UNSERVED)
        if self._flag("do_pad", False):
            raise self._error("do_pad", "false", "true")
        shortest_edge, size = self._size() if self._flag("do_resize", True) else (None, None)
        crop = None
        if defaults.crops_by_share and shortest_edge is not None:
            edge, shortest_edge = shortest_edge, None
            if edge < _WARPED_FROM:
                shortest_edge, crop = int(edge / self._number("crop_pct", 224 / 256)), (edge, edge)
            else:
                size = (edge, edge)
        if self._flag("do_center_crop", defaults.crop is not None):
            if crop is not None:
                raise self._error("do_center_crop", "false beside crop_pct", "true")
            crop = self._crop()
        if crop is None and shortest_edge is not None:
            raise self._error(
                "do_center_crop", "true beside size.shortest_edge, so that all images have one size", "false"
            )
        factor = self._number("rescale_factor", 1 / 255) if self._flag("do_rescale", True) else 1.0
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if self._flag("do_normalize", True):
            mean, std = self._channels("image_mean", defaults.mean), self._channels("image_std", defaults.std)
            if min(std) <= 0:
                raise self._error("image_std", "numbers above 0", self._config.get("image_std"))
        resample = self._config.get("resample")
        resample = int(defaults.resample) if resample is None else resample
        if type(resample) is not int or resample not in list(Image.Resampling):
            raise self._error("resample", "an integer from 0 to 5", resample)
        return Preparation(shortest_edge, size, crop, Image.Resampling(resample), factor, mean, std)

    def _size(self) -> tuple[int | None, tuple[int, int] | None]:
        """Return the shortest edge, or both sides."""
        value = self._config.get("size")
        value = self._defaults.size if value is None else value
        is_square = self._flag("default_to_square", self._defaults.is_square)
        match value:
            case int():
                side = self._side("size", value)
                return (None, (side, side)) if is_square else (side, None)
            case [height, width] | {"height": height, "width": width}:
                return None, (self._side("size", height), self._side("size", width))
            case {"shortest_edge": edge, **others} if not others:
                return self._side("size", edge), None
        raise self._error("size", "an integer, height and width, or shortest_edge", value)

    def _crop(self) -> tuple[int, int]:
        value = self._config.get("crop_size")
        value = self._defaults.crop if value is None else value
        match value:
            case int():
                side = self._side("crop_size", value)
                return side, side
            case [height, width] | {"height": height, "width": width}:
                return self._side("crop_size", height), self._side("crop_size", width)
        raise self._error("crop_size", "an integer, or height and width", value)

    def _side(self, key: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= _MAX_SIDE:
            raise self._error(key, f"integers from 1 to {_MAX_SIDE}", value)
        return value

    def _flag(self, key: str, default: bool) -> bool:
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(key, "true or false", value)
        return value

    def _number(self, key: str, default: float) -> float:
        value = self._config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise self._error(key, "a number above 0", value)
        return float(value)

    def _channels(self, key: str, default: Channels) -> Channels:
        value = self._config.get(key)
        value = default if value is None else value
        values = [value] * 3 if isinstance(value, int | float) else value
        if isinstance(values, list | tuple) and len(values) == 3:
            red, green, blue = values
            if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
                return float(red), float(green), float(blue)
        raise self._error(key, "three numbers", value)

    def _error(self, key: str, expected: str, found: object) -> InvalidModel:
        return InvalidModel(
            f"{self._file}: {key}: expected {expected}, got {str(found)[:100]}; such images are not served"
        )
