"""Folders with packed weights, packed here by the definitions of GPTQ, AWQ and compressed-tensors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GROUP = 32
Tensors = dict[str, torch.Tensor]
Pack = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""Weights [outputs, inputs] → the tensors of the layer by their names in it, and the weights that they mean."""

# AutoAWQ's order of eight neighbouring outputs in an integer, lowest bits first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def save_packed(folder: Path, pack: Pack, scheme: Mapping[str, Any]) -> Tensors:
    """Pack the layers of the model in a folder, and return the parameters that it then means. The head stays plain, as
    do layers that groups do not divide.
    """
    file = folder / "model.safetensors"
    kept: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(file).items():
        if name.endswith("_proj.weight") and tensor.shape[1] % GROUP == 0:
            tensors, meant[name] = pack(tensor.float())
            kept |= {f"{name.removesuffix('.weight')}.{part}": each.contiguous() for part, each in tensors.items()}
        else:
            kept[name] = meant[name] = tensor
    save_file(kept, file, metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": dict(scheme)}))
    return meant


def rounded(
    weight: torch.Tensor, bits: int, group_of_input: torch.Tensor, has_zeros: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round to numbers from 0, int64 [outputs, inputs], with scales (float16) and zero points [outputs, groups]."""
    groups = int(group_of_input.max()) + 1
    most = (1 << bits) - 1
    columns = [weight[:, group_of_input == group] for group in range(groups)]
    if has_zeros:
        low = torch.stack([each.amin(1).clamp(max=0) for each in columns], 1)
        high = torch.stack([each.amax(1).clamp(min=0) for each in columns], 1)
        scale = ((high - low) / most).half()
        zero = torch.round(-low / scale).long().clamp(1, most)
    else:
        scale = (torch.stack([each.abs().amax(1) for each in columns], 1) / (most // 2)).half()
        zero = torch.full(scale.shape, (most + 1) // 2)
    numbers = torch.round(weight / scale.float()[:, group_of_input]) + zero[:, group_of_input]
    return numbers.long().clamp(0, most), scale, zero


def _meant(
    numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, group_of_input: torch.Tensor
) -> torch.Tensor:
    return (numbers - zero[:, group_of_input]) * scale.float()[:, group_of_input]


def packed_last(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the last dimension into integers of 32 bits, the first number in the lowest bits; zeros fill the last."""
    per_integer = 32 // bits
    filled = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % per_integer)).numpy().astype(np.uint64)
    shifted = filled.reshape(len(filled), -1, per_integer) << (
        np.arange(per_integer, dtype=np.uint64) * np.uint64(bits)
    )
    return torch.from_numpy(shifted.sum(2).astype(np.uint32).view(np.int32))


def gptq(bits: int, *, has_zeros: bool = True, acts_in_order: bool = True, version: int = 1) -> Pack:
    """As AutoGPTQ packs. Without `acts_in_order` the inputs of a group are not neighbours (act-order)."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        inputs = weight.shape[1]
        group_of_input = torch.arange(inputs) // GROUP
        if not acts_in_order:
            group_of_input = group_of_input[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        numbers, scale, zero = rounded(weight, bits, group_of_input, has_zeros)
        tensors = {
            "qweight": packed_last(numbers, bits).t(),
            "qzeros": packed_last(zero.t() - int(version == 1), bits),
            "scales": scale.t(),
            "g_idx": group_of_input.int(),
        }
        return tensors, _meant(numbers, scale, zero, group_of_input)

    return pack


def awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """As AutoAWQ's gemm layout packs: 4 bits with zero points, eight outputs in an integer."""
    group_of_input = torch.arange(weight.shape[1]) // GROUP
    numbers, scale, zero = rounded(weight, 4, group_of_input, has_zeros=True)
    order = torch.arange(len(weight)).view(-1, 8)[:, list(_AWQ_ORDER)].reshape(-1)
    tensors = {
        "qweight": packed_last(numbers.t()[:, order], 4),
        "qzeros": packed_last(zero.t()[:, order], 4),
        "scales": scale.t(),
    }
    return tensors, _meant(numbers, scale, zero, group_of_input)


def compressed(bits: int, *, has_zeros: bool = False, group: int | None = GROUP, is_packed: bool = True) -> Pack:
    """As compressed-tensors packs. `group`: None for one scale an output. Without `is_packed` as int8."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        middle = 1 << (bits - 1)
        group_of_input = torch.arange(inputs) // (group or inputs)
        numbers, scale, zero = rounded(weight, bits, group_of_input, has_zeros)
        tensors = {"weight_scale": scale}
        if is_packed:
            tensors |= {"weight_packed": packed_last(numbers, bits), "weight_shape": torch.tensor([outputs, inputs])}
        else:
            tensors["weight"] = (numbers - middle).to(torch.int8)
        if has_zeros:
            signed = (zero - middle).to(torch.int8)
            tensors["weight_zero_point"] = packed_last(zero.t(), bits).t() if is_packed else signed
        return tensors, _meant(numbers, scale, zero, group_of_input)

    return pack


def float8(block: tuple[int, int] | None, *, has_one_scale: bool = False, name: str = "weight_scale") -> Pack:
    """As float8_e4m3fn with a scale for each output, one for all, or one for each block of outputs and inputs."""

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        rows, columns = (outputs, inputs) if has_one_scale else block or (1, inputs)
        row_of, column_of = torch.arange(outputs) // rows, torch.arange(inputs) // columns
        largest = torch.zeros(int(row_of.max()) + 1, int(column_of.max()) + 1)
        for row, column in np.ndindex(*largest.shape):
            largest[row, column] = weight[row_of == row][:, column_of == column].abs().max()
        scale = (largest / 448).clamp(min=1e-12)
        spread = scale[row_of][:, column_of]
        values = (weight / spread).to(torch.float8_e4m3fn)
        tensors = {"weight": values, name: scale.reshape(()) if has_one_scale else scale}
        return tensors, values.float() * spread

    return pack


def compressed_scheme(form: str, bits: int) -> dict[str, Any]:
    """Return the quantization of a compressed-tensors folder."""
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"],
    }  # fmt: skip
