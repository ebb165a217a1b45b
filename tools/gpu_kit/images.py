"""Measure images per second of ResNet-50 with random weights beside the model alone."""

import asyncio
import io
import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from PIL import Image

from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_SIZE = 224
_BATCH = 64
_PATH = "/models/resnet/infer"
_DEPTHS = {"cuda": [3, 4, 6, 3], "cpu": [1, 1, 1, 1]}


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work on a kind of device."""

    images: int
    rounds: int


SCALES = {"cuda": Scale(1024, 3), "cpu": Scale(16, 1)}


def measure_images(work: Path, device: str) -> Iterator[Row]:
    """Yield a row for one caller and 32 callers, each with a JPEG file in a request."""
    scale = SCALES[device]
    folder = write_resnet(work / "resnet", device)
    config = work / "resnet.toml"
    entry = f'[[models.torch_models]]\nname = "resnet"\npath = "{folder}"\ndevice = "{device}"\n'
    config.write_text(entry, encoding="utf-8")
    alone_s = partial(_alone_s, _model(folder, device), device, scale.images)
    with roundhouse(config=config, cores=None) as server:
        requests = [request_of(_PATH, orjson.dumps({"image": each})) for each in _files(16)]
        for callers in (1, 32):

            def ours_s(callers: int = callers) -> float:
                return asyncio.run(closed_loop(server.port, requests, callers, scale.images))

            ours_s()
            both: dict[str, Callable[[], float]] = {"ours": ours_s, "alone": alone_s}
            seconds = in_turn(both, scale.rounds)
            rates = {name: [scale.images / each for each in of_way] for name, of_way in seconds.items()}
            alone = f"{median(rates['alone']):.0f} images/s"
            yield Row(
                f"ResNet-50, a JPEG file of {_SIZE} x {_SIZE} a request, {callers} at once",
                f"{median(rates['ours']):.0f} images/s, {ratio(rates['ours'], rates['alone']):.2f} times",
                compared=f"the model alone, channels last, batches of {_BATCH}: {alone}",
            )


def write_resnet(folder: Path, device: str) -> Path:
    """Write the model from a fixed seed; return the folder. Without a GPU it has fewer layers."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(num_labels=1000, depths=_DEPTHS[device])
    ResNetForImageClassification(config).save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": _SIZE, "width": _SIZE},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return folder


def _files(count: int) -> Sequence[str]:
    """Return JPEG files of coarse noise, in base64."""
    draw = np.random.default_rng(0)
    files = []
    for _ in range(count):
        noise = Image.fromarray(draw.integers(0, 256, (14, 14, 3), np.uint8)).resize((_SIZE, _SIZE))
        file = io.BytesIO()
        noise.save(file, "JPEG", quality=90)
        files.append(b64encode(file.getvalue()).decode("ascii"))
    return files


def _alone_s(model: Any, device: str, images: int) -> float:
    """Return the seconds of the model alone on pixels that are on the device."""
    import torch

    dtype = next(model.parameters()).dtype
    pixels = torch.randn(min(_BATCH, images), 3, _SIZE, _SIZE, device=device, dtype=dtype)
    pixels = pixels.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        float(model(pixels).logits[0, 0])
        began_s = time.perf_counter()
        for _ in range(images // len(pixels)):
            logits = model(pixels).logits
        float(logits[0, 0])
    return time.perf_counter() - began_s


def _model(folder: Path, device: str) -> Any:
    import torch
    from transformers import ResNetForImageClassification

    dtype = torch.float16 if device == "cuda" else torch.float32
    model: Any = ResNetForImageClassification.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.to(device=device, memory_format=torch.channels_last).eval()
