"""Load the part of one rank of transformers' model: only its slices are read from the mapped files."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM

from frameworks.core.errors import InvalidModel, OutOfMemory, without_paths
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.step.shape import read_config
from frameworks.pytorch.generation.tensor_parallel.shard import Shard, split_axis
from frameworks.pytorch.loader import DTYPES
from frameworks.pytorch.weights import read_weight_files

_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"


def load_shard(load: GeneratorLoad, shard: Shard) -> Any:
    """Return transformers' model with the layers of one rank, on its device and in its dtype.

    Its sums over the ranks are missing: see `parallel_linears`. Raises InvalidModel, OutOfMemory.
    """
    folder, config = load.folder, read_config(load.folder)
    model = _without_weights(folder, shard.of_config(config), load.dtype)
    # The size of the parts of all ranks, so that the results of all have one shape.
    part = -(-int(config.vocab_size) // shard.size)
    model.lm_head = torch.nn.Linear(config.hidden_size, part, bias=False, device="meta", dtype=DTYPES[load.dtype])
    for name, module in model.named_modules():
        if getattr(module, "bias", None) is not None and not shard.has(f"{name}.bias"):
            module.register_parameter("bias", None)
    wanted = dict(model.named_parameters())
    found: dict[str, torch.Tensor] = {}
    try:
        for name, tensor in _read(load, shard, set(wanted), is_tied=bool(config.tie_word_embeddings)):
            found[name] = _padded(tensor, part) if name == _HEAD else tensor
    except torch.OutOfMemoryError as error:
        text = f"the weights of rank {shard.rank} do not fit on {load.device.id}"
        raise OutOfMemory(f"{folder}: {text}: {error}", f"{text}: {without_paths(str(error))}") from error
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"{folder}: not a readable safetensors file ({error}); check the copy") from error
    _check(folder, wanted, found)
    model.load_state_dict(found, strict=True, assign=True)
    return model.eval().requires_grad_(False).to(load.device.id)


def _without_weights(folder: Path, config: Any, dtype: str) -> Any:
    """Return a model whose parameters have no memory; the frequencies of its RoPE are computed from the config."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa")
        model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    except Exception as error:
        # transformers raises many types on broken folders.
        raise InvalidModel(
            f"{folder}: transformers cannot build it for tensor_parallel: {type(error).__name__}: {error}"
        ) from error
    return model


def _read(load: GeneratorLoad, shard: Shard, wanted: set[str], *, is_tied: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parts of this rank of the wanted weights, by their names in transformers' model, on the device."""
    for file in read_weight_files(load.folder).files:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - a safe_open handle is not a mapping
                if name in wanted:
                    yield name, _part(tensors.get_slice(name), name, load, shard)
                if name == _TABLE and is_tied:
                    yield _HEAD, _part(tensors.get_slice(name), _HEAD, load, shard)


def _part(tensor: Any, name: str, load: GeneratorLoad, shard: Shard) -> torch.Tensor:
    """Return the part of this rank of a tensor in a file, contiguous, in the dtype of the load."""
    shape, axis = tensor.get_shape(), split_axis(name)
    if axis is None or axis >= len(shape):
        part: torch.Tensor = tensor[...]
    else:
        part = tensor[(slice(None),) * axis + (shard.part_of(shape[axis]),)]
    if not part.is_floating_point():
        raise InvalidModel(
            f"{load.folder}: {name}: expected a weight of floating point (F32, F16, BF16) beside tensor_parallel, got "
            f"{part.dtype}; serve the original"
        )
    return part.to(load.device.id, DTYPES[load.dtype]).contiguous()


def _padded(part: torch.Tensor, rows: int) -> torch.Tensor:
    """[outputs, inputs] → [rows, inputs], zeros behind the last one."""
    return torch.nn.functional.pad(part, (0, 0, 0, rows - len(part)))


def _check(folder: Path, wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """Raise InvalidModel for weights that are missing in the files, or have another shape than config.json says."""
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise InvalidModel(
            f"{folder}: tensor_parallel: missing weights: {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; "
            "save the model with transformers' save_pretrained"
        )
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise InvalidModel(
                f"{folder}: {name}: expected a part of {prod(tensor.shape)} elements for each rank, got "
                f"{prod(found[name].shape)}; check the sizes in config.json"
            )
