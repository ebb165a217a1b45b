"""Refuse, before a load, the models and options that ranks cannot compute together; choose the device of each rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.generation.image_text_models import SERVED
from frameworks.pytorch.generation.decoders.llama import MODEL_TYPES, is_llama_config
from frameworks.pytorch.generation.step.shape import read_config
from frameworks.pytorch.generation.tensor_parallel.shard import key_heads
from frameworks.tasks.architectures import architecture_of


def check_model(folder: Path, entry: TorchModelEntry, *, is_packed: bool) -> None:
    """Raise InvalidModel for a model or an option that `tensor_parallel` does not support, by name.

    `is_packed`: its files have quantized weights.
    """
    size = entry.tensor_parallel
    if architecture_of(folder) in SERVED:
        raise InvalidModel(
            f"{folder}: tensor_parallel: expected a language model of texts alone, got {architecture_of(folder)}; "
            "remove tensor_parallel"
        )
    config = read_config(folder)
    if not is_llama_config(config):
        raise InvalidModel(
            f"{folder}: tensor_parallel: expected a model of {', '.join(MODEL_TYPES)} with SiLU and a fixed RoPE for "
            f"{size} ranks, got {config.model_type}; remove tensor_parallel"
        )
    for option, remedy in _refused_options(entry, config, is_packed=is_packed):
        raise InvalidModel(f"{folder}: tensor_parallel: expected no {option} beside it in this version; {remedy}")
    _check_sizes(folder, config, size)
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise InvalidModel(
            f"{folder}: tensor_parallel: expected a build of torch with torch.distributed and gloo, got one without; "
            "install another build, or remove tensor_parallel"
        )


def rank_devices(entry: TorchModelEntry, num_cuda: int) -> tuple[str, ...]:
    """Return the device of each rank: adjacent CUDA devices from that of the entry on, or `cpu` for each.

    `num_cuda`: CUDA devices that torch can use. Raises InvalidModel for MPS, and where there are too few.
    """
    size, device = entry.tensor_parallel, entry.device
    if device == "cpu" or (device == "auto" and not num_cuda):
        return ("cpu",) * size
    if not isinstance(device, str) or device == "mps":
        raise InvalidModel(f'device: expected "auto", "cuda", "cuda:N" or "cpu" beside tensor_parallel, got {device!r}')
    kind, _, number = device.partition(":")
    first = int(number or 0) if kind == "cuda" else 0
    if first + size > num_cuda:
        raise InvalidModel(
            f"tensor_parallel: expected {size} CUDA devices from cuda:{first} on, got {max(0, num_cuda - first)}; "
            'set fewer ranks, another device, or device = "cpu"'
        )
    return tuple(f"cuda:{first + rank}" for rank in range(size))


def device_of_rank(first: Device, rank: int) -> Device:
    """Return the device of a rank. `first`: that of rank 0."""
    return first if first.kind == "cpu" else Device(first.kind, first.index + rank, first.name, 0, 0)


def rank_weight_bytes(folder: Path, ranks: int, elements: int, itemsize: int) -> int:
    """Return the bytes of the weights of one rank: a part of the layers and of the head, and the whole embedding.

    `elements`: of all weights in the files.
    """
    config = read_config(folder)
    table = int(config.vocab_size) * int(config.hidden_size)
    # A head with the weights of the embedding is in the file once.
    split = elements - (0 if config.tie_word_embeddings else table)
    return (table + -(-split // ranks)) * itemsize


def _refused_options(entry: TorchModelEntry, config: Any, *, is_packed: bool) -> Iterator[tuple[str, str]]:
    """Yield each option that is not supported, and the remedy."""
    if is_packed or getattr(config, "quantization_config", None) is not None:
        yield "quantized weights", "serve the original in f32, bf16 or f16"
    if entry.dtype in ("int8", "int4"):
        yield f'dtype = "{entry.dtype}"', 'set "f32", "bf16" or "f16"'
    if entry.draft_model is not None:
        yield "draft_model", "remove it"
    if entry.adapters:
        yield "adapters", "remove them"
    if entry.instances > 1:
        yield "instances", "remove it"


def _check_sizes(folder: Path, config: Any, size: int) -> None:
    """Raise InvalidModel where a size of the layers is no multiple of the number of ranks."""
    sizes = {
        "num_key_value_heads": key_heads(config),
        "num_attention_heads": int(config.num_attention_heads),
        "intermediate_size": int(config.intermediate_size),
    }
    for name, value in sizes.items():
        if value % size:
            raise InvalidModel(
                f"{folder}: tensor_parallel: expected a divisor of {name}, {value}, got {size}; set a number that "
                f"divides {', '.join(f'{each} ({count})' for each, count in sizes.items())}"
            )
