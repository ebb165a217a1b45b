"""Compare model types with `generate` in a process that has torchvision, or serve them in it.

`python -m tests.frameworks.pytorch.generation.vision.with_torchvision images|videos TYPE …`, `… texts FOLDER …` or
`… serve ARGUMENT …`, with torchvision on the path.
The wheel's library needs CUDA's torch. Its transforms of images, which processors use, are functions of torch alone.
"""

import importlib
import json
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

_TWO = "(Tensor one, Tensor two, float three) -> Tensor"
_POOLED = "(Tensor input, Tensor rois, float scale, SymInt height, SymInt width{}) -> {}"
_BOTH = "(Tensor, Tensor)"
_SCHEMAS = {
    "nms": _TWO,
    "qnms": _TWO,
    "roi_align": _POOLED.format(", int ratio, bool aligned", "Tensor"),
    "roi_pool": _POOLED.format("", _BOTH),
    "ps_roi_align": _POOLED.format(", int ratio", _BOTH),
    "ps_roi_pool": _POOLED.format("", _BOTH),
    "deform_conv2d": "(Tensor input) -> Tensor",
    **{f"_{name}_backward": "(Tensor grad) -> Tensor" for name in ("roi_align", "roi_pool", "ps_roi_align")},
    **{f"_{name}_backward": "(Tensor grad) -> Tensor" for name in ("ps_roi_pool", "deform_conv2d")},
}


def main(what: str, arguments: list[str]) -> None:
    """Compare the images or the videos of each model type, print the texts of `generate` after a video, or serve.
    Raises AssertionError at the first text that differs.
    """
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # untyped
    for name, schema in _SCHEMAS.items():
        library.define(f"{name}{schema}")
    importlib.import_module("torchvision")
    # transformers looks for torchvision when it is imported.
    if what == "serve":
        sys.exit(importlib.import_module("app.cli.commands").main(["serve", *arguments]))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    package = "tests.frameworks.pytorch.generation.vision"
    if what == "texts":
        text_of = importlib.import_module(f"{package}.seeing_videos").text_of
        print(json.dumps([text_of(Path(each)) for each in arguments]))
        return
    catalogue = importlib.import_module("tests.support.models.vision.catalogue")
    makers = catalogue.MAKERS | catalogue.TORCHVISION_MAKERS
    with TemporaryDirectory() as folder:
        for name in arguments:
            own = Path(folder) / name
            own.mkdir()
            makers[name](own)
            if what == "images":
                reason = importlib.import_module(f"{package}.seeing").compare(own, (0, 1, 3))
                print(name, reason or "paged attention", flush=True)
            else:
                print(name, importlib.import_module(f"{package}.seeing_videos").compare_videos(own), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
