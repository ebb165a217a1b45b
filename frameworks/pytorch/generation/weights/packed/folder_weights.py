"""The weights of a language model in a GPTQ, AWQ, compressed-tensors or float8 folder."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, apply_renamings

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.weights.packed.float8 import Float8Weight
from frameworks.pytorch.generation.weights.packed.integers import AwqWeight, ColumnTensors, GptqWeight, RowWeight
from frameworks.pytorch.generation.weights.packed.weight import PackedWeight

_BITS = (4, 8)
_WEIGHT = ".weight"


class FolderWeights:
    """A WeightSource. Tensors stay in the mapped files until they are read."""

    def __init__(self, folder: Path, files: Iterable[Path], scheme: Mapping[str, Any]) -> None:
        """`files`: the folder's safetensors files. `scheme`: as `read_scheme` returns it.

        Raises InvalidModel for a file that is not readable.
        """
        self._folder = folder
        self._scheme = scheme
        layouts = {"compressed-tensors": self._of_rows, "gptq": self._of_columns, "awq": self._of_columns}
        self._find: Callable[[str], PackedWeight | None] = layouts.get(scheme["quant_method"], self._of_floats)
        # By the name of a parameter: its file, and its name there.
        self._files: dict[str, tuple[Any, str]] = {}
        for file in files:
            try:
                opened: Any = safe_open(str(file), framework="pt")
                names: list[str] = opened.keys()
                self._files |= {name: (opened, name) for name in names}
            except Exception as error:  # SafetensorError is no Exception of a fixed module
                raise InvalidModel(f"{file}: not a readable safetensors file ({error})") from error

    @property
    def name(self) -> str:
        """As WeightSource.name."""
        return str(self._folder)

    def packed(self, parameter: str) -> PackedWeight | None:
        """As WeightSource.packed."""
        if not parameter.endswith(_WEIGHT):
            return None
        module = parameter.removesuffix(_WEIGHT)
        try:
            return self._find(module)
        except ValueError as error:
            raise InvalidModel(f"{self._folder}: {module}: {error}; is the copy complete?") from error

    def plain(self, parameter: str) -> torch.Tensor | None:
        """As WeightSource.plain, in the shape and dtype of the file."""
        found = self._tensor(parameter)
        return found if found is not None and found.is_floating_point() and found.itemsize > 1 else None

    def bind(self, model: torch.nn.Module) -> None:
        """As WeightSource.bind: name the weights as transformers does when it loads them."""
        mapping = get_model_conversion_mapping(model)
        renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._files = {apply_renamings(name, renamings): found for name, found in self._files.items()}

    def adjust(self, model: torch.nn.Module) -> None:
        """As WeightSource.adjust."""

    def _tensor(self, name: str) -> torch.Tensor | None:
        found = self._files.get(name)
        if found is None:
            return None
        opened, own_name = found
        tensor: torch.Tensor = opened.get_tensor(own_name)
        return tensor

    def _of_columns(self, module: str) -> PackedWeight | None:
        weight, zeros, scales = (self._tensor(f"{module}.{name}") for name in ("qweight", "qzeros", "scales"))
        if weight is None:
            return None
        if zeros is None or scales is None or weight.dtype != torch.int32 or zeros.dtype != torch.int32:
            raise ValueError("expected qweight and qzeros of int32 and scales, got others")
        if self._scheme["quant_method"] == "awq":
            return AwqWeight(ColumnTensors(weight, zeros, scales))
        is_first = str(self._scheme.get("checkpoint_format") or "gptq").lower() == "gptq"
        tensors = ColumnTensors(weight, zeros, scales, self._tensor(f"{module}.g_idx"))
        return GptqWeight(tensors, int(self._scheme["bits"]), is_first)

    def _of_rows(self, module: str) -> PackedWeight | None:
        packed, plain = self._tensor(f"{module}.weight_packed"), self._tensor(f"{module}{_WEIGHT}")
        if plain is not None and plain.itemsize == 1 and plain.is_floating_point():
            return self._of_floats(module)
        weight = packed if packed is not None else plain
        if weight is None or (packed is None and weight.dtype != torch.int8):
            return None
        scale = self._tensor(f"{module}.weight_scale")
        if scale is None or weight.ndim != 2 or weight.dtype not in (torch.int8, torch.int32):
            raise ValueError("expected weights of int32 or int8 with weight_scale, got others")
        shape, bits = (int(weight.shape[0]), int(weight.shape[1])), _BITS[1]
        if weight.dtype == torch.int32:
            stated = self._tensor(f"{module}.weight_shape")
            if stated is None or stated.numel() != 2:
                raise ValueError("expected weight_shape, got none")
            shape = (int(stated[0]), int(stated[1]))
            bits = next((each for each in _BITS if -(-shape[1] * each // 32) == weight.shape[1]), 0)
            if not bits:
                raise ValueError(f"expected 4 or 8 bits, got {weight.shape[1]} integers for {shape[1]} inputs")
        zero, groups = self._tensor(f"{module}.weight_zero_point"), self._tensor(f"{module}.weight_g_idx")
        return RowWeight(weight, scale, zero, groups, shape, bits)

    def _of_floats(self, module: str) -> PackedWeight | None:
        weight = self._tensor(f"{module}{_WEIGHT}")
        if weight is None or weight.itemsize > 1:
            return None
        # transformers and DeepSeek name the scale by its inverse, though the weight is multiplied by it.
        scales = (self._tensor(f"{module}.{name}") for name in ("weight_scale_inv", "weight_scale"))
        scale = next((each for each in scales if each is not None), None)
        if scale is None:
            raise ValueError("expected weight_scale or weight_scale_inv, got neither")
        block = self._scheme.get("weight_block_size")
        return Float8Weight(weight, scale, None if block is None else (block[0], block[1]))
