"""Images for tests: pixels like those of a photo, and files of them."""

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def photo(height: int, width: int, seed: int = 0) -> Pixels:
    """Return smooth random pixels, uint8 [height, width, 3], with some noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = random.integers(-12, 13, smooth.shape, dtype=np.int16)
    pixels: Pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    return pixels


def encoded(pixels: Pixels, form: str = "JPEG", **options: Any) -> bytes:
    """Return a file in JPEG, PNG or WEBP. `options`: of Pillow."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()
