"""Read a pickle of tensors that the entry of a model allows. Imports torch: only such a file needs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from frameworks.core.errors import InvalidModel
from frameworks.types import Vectors

if TYPE_CHECKING:
    import torch

log = structlog.get_logger(__name__)

PICKLE = "pytorch_model.bin"
HEADS: dict[Vectors, str] = {"sparse": "sparse_linear.pt", "multi": "colbert_linear.pt"}
"""Kind of vectors → the file of its layer on the states of the tokens, as in bge-m3."""


def read_pickled_tensors(file: Path) -> "Mapping[str, torch.Tensor]":
    """Return the tensors of a file by name; their numbers stay in the file until they are used. Raises InvalidModel."""
    try:
        import torch
    except ImportError as error:
        raise InvalidModel(f"{file}: expected PyTorch to read a pickle, got none; install torch") from error
    log.warning("weights are read from a pickle", file=str(file))
    try:
        content = _load(file)
    except Exception as error:  # A damaged or hostile file raises errors of any kind.
        raise InvalidModel(
            f"{file}: expected tensors, which weights_only = true reads, got {type(error).__name__}; "
            "check that the copy is complete"
        ) from error
    tensors = content if isinstance(content, dict) else {}
    if not tensors or not all(isinstance(each, torch.Tensor) for each in tensors.values()):
        raise InvalidModel(f"{file}: expected tensors by name, got {type(content).__name__}; convert it to safetensors")
    return {str(name): tensor for name, tensor in tensors.items()}


def _load(file: Path) -> object:
    import torch

    try:
        return torch.load(str(file), map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        # Files of torch before version 1.6 cannot be mapped.
        return torch.load(str(file), map_location="cpu", weights_only=True)
