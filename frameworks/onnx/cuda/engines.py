"""The folder of a graph's TensorRT engines below `models.cache_dir`."""

import re
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnxruntime as ort
import structlog

from frameworks.core.files import contents_name

log = structlog.get_logger(__name__)

# Increase it whenever the options change with which engines are built.
_VERSION = 1
_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


def engine_folder(cache_dir: Path, sources: Sequence[Path], card: str) -> Path | None:
    """Return `<cache_dir>/tensorrt/<name of the contents>-<card>-v<version>`, which exists and is writable.

    `sources`: the graph and its external data. TensorRT compares an engine with none of them, so the name depends on
    their bytes, on the card, and on the versions of ONNX Runtime and TensorRT. Return None, with a warning, where it
    cannot be written: the engines are then built at each load.
    """
    made_by = f"onnxruntime {ort.__version__}, TensorRT {_tensorrt_version()}, {card}"
    try:
        folder = cache_dir / "tensorrt" / f"{contents_name(sources, made_by)}-{_slug(card)}-v{_VERSION}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning(
            "TensorRT engines are not kept: each load builds them again",
            error=str(error),
            remedy="make models.cache_dir writable",
        )
        return None


def _tensorrt_version() -> str:
    """Return the version of TensorRT's wheel; empty for a TensorRT of the system."""
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def _slug(card: str) -> str:
    """Return the name of a card as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")[:64] or "card"
