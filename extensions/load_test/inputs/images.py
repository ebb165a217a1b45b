"""Images of a load test: files that are given, or pictures that are made."""

import base64
import random
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
from PIL import Image

from extensions.load_test.inputs.tensors import CannotMake, Made
from frameworks.images.headers import SUFFIXES

SIZE = (500, 375)
"""Width and height of a made picture."""

_MAX_FILES = 4096
_MAX_BYTES = 256 * 1024**2
_COARSE = 24


def read_images(path: Path) -> list[tuple[bytes, str]]:
    """Return the content and the type of a file, or of the files of a folder by name. Raises ValueError."""
    paths = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    found, size = [], 0
    for each in paths[:_MAX_FILES]:
        if not each.exists():
            raise ValueError(f"--images: expected images, got {each}, which does not exist; correct the path")
        kind = SUFFIXES.get(each.suffix.lower())
        if kind is None or not each.is_file():
            raise ValueError(f"--images: expected a file with {', '.join(SUFFIXES)}, got {each}")
        size += each.stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"--images: expected files of at most {_MAX_BYTES} bytes together, got more")
        found.append((each.read_bytes(), kind))
    if not found:
        raise ValueError(f"--images: expected files with {', '.join(SUFFIXES)}, got {path} with none")
    return found


def made_image(draw: random.Random) -> bytes:
    """Return a JPEG file of SIZE, smooth with some noise."""
    coarse = Image.frombytes("RGB", (_COARSE, _COARSE), draw.randbytes(3 * _COARSE * _COARSE))
    noise = Image.frombytes("RGB", SIZE, draw.randbytes(3 * SIZE[0] * SIZE[1]))
    content = BytesIO()
    Image.blend(coarse.resize(SIZE, Image.Resampling.BICUBIC), noise, 0.1).save(content, "JPEG", quality=90)
    return content.getvalue()


def reads_images(description: dict[str, Any], made: Made) -> bool:
    """Whether a request has images: those that are given, else for a model that reads nothing else."""
    if made.images:
        if not description.get("image"):
            raise CannotMake("--images: expected a model that reads images, got another; leave --images out")
        return True
    inputs = description.get("inputs") or []
    reads_texts = any(isinstance(each, dict) and each.get("name") == "text" for each in inputs)
    return bool(description.get("image")) and description.get("task") != "tensor" and not reads_texts


def image_request(made: Made, draw: random.Random) -> tuple[bytes, str]:
    """Return body and type of a request: one image as it is, several as JSON. They are random ones of those given."""
    chosen = [draw.choice(made.images) if made.images else (made_image(draw), "image/jpeg") for _ in range(made.rows)]
    if len(chosen) == 1:
        return chosen[0]
    return orjson.dumps({"image": [base64.b64encode(content).decode() for content, _ in chosen]}), "application/json"
