"""Images for the comparison of a quantized vision model with its original."""

import numpy as np
from PIL import Image

from frameworks.images.processor import Array, ImageProcessor

NUM_IMAGES = 6
_COARSE = 6
_NOISE = 16


def warm_up_pixels(processor: ImageProcessor) -> Array:
    """Return the prepared pixels of smooth random images with some noise; the first is black, the second white."""
    random = np.random.default_rng(0)
    rows = processor.empty(NUM_IMAGES)
    size = processor.width, processor.height
    images = [Image.new("RGB", size), Image.new("RGB", size, "white")]
    while len(images) < NUM_IMAGES:
        coarse = Image.fromarray(random.integers(0, 256, (_COARSE, _COARSE, 3), np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
        noise = random.integers(-_NOISE, _NOISE + 1, smooth.shape, np.int16)
        images.append(Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8)))
    for row, image in zip(rows, images, strict=True):
        processor.prepare(image, "image", row)
    return rows


def black_pixels(processor: ImageProcessor, images: int) -> Array:
    """Return the prepared pixels of so many black images."""
    rows = processor.empty(images)
    for row in rows:
        processor.prepare(Image.new("RGB", (processor.width, processor.height)), "image", row)
    return rows
