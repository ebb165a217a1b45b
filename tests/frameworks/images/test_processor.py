"""Preparation of images against transformers' image processors, and the layouts that ONNX graphs have."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.images.processor import Array, ImageProcessor, Preparation
from frameworks.images.processor_config import read_preparation
from tests.support.images import encoded, photo

MAX_LEVELS = 1
"""Only the part that the crop keeps is resized. Its position is rounded, and Pillow may resize it in another order of
rows and columns, each of which it rounds: a pixel may differ by one of 256 levels."""
MAX_SHARE = 0.3
"""Of the pixels that differ."""
SIZES = [(37, 50), (64, 41), (33, 33), (20, 90), (300, 211)]

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def sides(height: int, width: int) -> dict[str, int]:
    return {"height": height, "width": width}


def edge(pixels: int) -> dict[str, int]:
    return {"shortest_edge": pixels}


def config_of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"image_processor_type": f"{kind}ImageProcessor", **fields}


CONFIGS: dict[str, dict[str, Any]] = {
    "vit": config_of("ViT", size=sides(30, 28)),
    "vit old": {"feature_extractor_type": "ViTFeatureExtractor", "size": 32, "resample": 3},
    "vit fast": {"image_processor_type": "ViTImageProcessorFast", "size": sides(32, 32), "do_rescale": True},
    "no resize": config_of("Bit", do_resize=False, crop_size=sides(24, 21)),
    "padded": config_of("Bit", do_resize=False, crop_size=sides(45, 52)),
    "resnet": config_of("ConvNext", size=edge(28), crop_pct=0.875),
    "convnext": config_of("ConvNext", size=edge(31), crop_pct=0.95, resample=2),
    "convnext large": config_of("ConvNext", size=edge(384)),
    "mobilenet v1": config_of("MobileNetV1", size=edge(36), crop_size=sides(32, 32)),
    "mobilenet v2": config_of("MobileNetV2", size=36, crop_size=31),
    "dinov2": config_of("Bit", size=edge(36), crop_size=sides(28, 28), **IMAGENET),
    "clip": config_of("CLIP", size=edge(32), crop_size=sides(32, 32)),
    "clip old": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32},
    "siglip": config_of("Siglip", size=sides(32, 32), resample=3),
    "deit": config_of("DeiT", size=sides(40, 40), crop_size=sides(32, 32)),
    "lanczos": config_of("CLIP", size=edge(32), crop_size=30, resample=1),
    "nearest": config_of("CLIP", size=edge(32), crop_size=30, resample=0),
    "box": config_of("CLIP", size=edge(32), crop_size=30, resample=4),
    "raw": config_of("ViT", size=sides(9, 9), do_rescale=False, do_normalize=False),
    "one mean": config_of("ViT", size=sides(9, 9), rescale_factor=1 / 127.5, image_mean=1.0, image_std=[0.5, 1, 2]),
}


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    (folder / "preprocessor_config.json").write_bytes(orjson.dumps(config))
    return folder


def reference(config: dict[str, Any], pixels: Array) -> Array:
    """Return the pixel values of transformers' class for Pillow."""
    import transformers

    name = config.get("image_processor_type", config.get("feature_extractor_type", "")).removesuffix("Fast")
    processor = getattr(transformers, name.replace("FeatureExtractor", "ImageProcessor") + "Pil")(**config)
    values: Array = np.asarray(processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0])
    return values


def prepared(processor: ImageProcessor, data: bytes) -> Array:
    rows = processor.empty(1)
    processor.read(data, processor.check(data, "image"), "image", rows[0])
    row: Array = rows[0]
    return row


def processor_of(preparation: Preparation | None, **options: Any) -> ImageProcessor:
    assert preparation is not None
    assert preparation.output_size is not None
    return ImageProcessor(preparation, preparation.output_size, **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_image_prepared_as_transformers_does(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    processor = processor_of(read_preparation(folder_of(config, tmp_path)))
    step = processor.preparation.rescale_factor / min(processor.preparation.std)
    for seed, (height, width) in enumerate(SIZES):
        pixels = photo(height, width, seed)
        values = prepared(processor, encoded(pixels, "PNG"))
        expected = reference(config, pixels)
        assert values.dtype == np.float32
        assert values.shape == expected.shape
        assert np.abs(values - expected).max() <= 1.01 * step * MAX_LEVELS
        assert (values != expected).mean() <= MAX_SHARE


def test_exact_resize_equals_reference_bit_for_bit(tmp_path: Path) -> None:
    config = CONFIGS["siglip"]
    processor = processor_of(read_preparation(folder_of(config, tmp_path)))
    pixels = photo(50, 37)
    np.testing.assert_array_equal(prepared(processor, encoded(pixels, "PNG")), reference(config, pixels))


def test_class_absent_uses_that_of_the_family(tmp_path: Path) -> None:
    folder = folder_of({"size": {"shortest_edge": 28}}, tmp_path)
    assert read_preparation(folder, "resnet") == read_preparation(
        folder_of({"size": {"shortest_edge": 28}, "image_processor_type": "ConvNextImageProcessor"}, tmp_path)
    )
    (folder / "preprocessor_config.json").write_bytes(b'{"size": 3}')
    with pytest.raises(InvalidModel, match=r"image_processor_type: expected one of Bit.*, got None"):
        read_preparation(folder)


def test_processor_config_of_several_read(tmp_path: Path) -> None:
    assert read_preparation(tmp_path) is None
    (tmp_path / "processor_config.json").write_bytes(orjson.dumps({"image_processor": CONFIGS["siglip"]}))
    preparation = read_preparation(tmp_path)
    assert preparation is not None
    assert preparation.size == (32, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "got Qwen2VLImageProcessor; "),
        ({"do_pad": True}, "do_pad: expected false, got true"),
        ({"do_center_crop": False}, "do_center_crop: expected true beside size.shortest_edge"),
        ({"size": {"longest_edge": 9}}, "size: expected an integer, height and width, or shortest_edge"),
        ({"size": {"shortest_edge": 9, "longest_edge": 20}}, "size: expected"),
        ({"size": 0}, "size: expected integers from 1 to 4096, got 0"),
        ({"size": True}, "size: expected integers"),
        ({"crop_size": {"height": 9}}, "crop_size: expected"),
        ({"crop_size": "9"}, "crop_size: expected"),
        ({"resample": 9}, "resample: expected an integer from 0 to 5, got 9"),
        ({"image_mean": [1, 2]}, "image_mean: expected three numbers"),
        ({"image_std": [1, 0, 1]}, "image_std: expected numbers above 0"),
        ({"rescale_factor": "x"}, "rescale_factor: expected a number above 0"),
        ({"do_resize": 1}, "do_resize: expected true or false, got 1"),
    ],
)
def test_unserved_step_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {"image_processor_type": "CLIPImageProcessor", "size": 8, "crop_size": 8} | changes
    with pytest.raises(InvalidModel, match=message.replace(".", r"\.")):
        read_preparation(folder_of(config, tmp_path))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_layout_order_and_dtype_change_only_places(layout: Any, order: Any, dtype: Any) -> None:
    pixels = photo(9, 7)
    preparation = Preparation(size=(9, 7), rescale_factor=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    values = prepared(
        processor_of(preparation, layout=layout, channel_order=order, dtype=dtype), encoded(pixels, "PNG")
    )
    expected: Array = (pixels / 255 - preparation.mean) / preparation.std if dtype != "uint8" else pixels
    expected = expected[:, :, ::-1] if order == "bgr" else expected
    expected = expected.transpose(2, 0, 1) if layout == "nchw" else expected
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_allclose(values.astype(float), expected, atol=1e-6 if dtype != "float16" else 2e-3)


def test_unresized_image_of_another_size_refused() -> None:
    processor = ImageProcessor(Preparation(), (8, 8))
    with pytest.raises(InvalidInput, match=r"image: expected 8 x 8 pixels, as this model .* got 9 x 8; resize it"):
        prepared(processor, encoded(photo(8, 9), "PNG"))


def test_extreme_side_lengths_are_bounded() -> None:
    line = encoded(np.zeros((1, 20_000, 3), np.uint8), "PNG")
    cut = ImageProcessor(Preparation(shortest_edge=256, crop=(224, 224)), (224, 224))
    assert prepared(cut, line).shape == (3, 224, 224)
    padded = ImageProcessor(Preparation(shortest_edge=256, crop=(300, 300)), (300, 300))
    with pytest.raises(InvalidInput, match="at most 50000000 pixels after resizing, got 5120000 x 256"):
        prepared(padded, line)
