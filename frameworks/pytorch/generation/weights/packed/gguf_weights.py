"""The weights of a language model in a GGUF file, and of its vision part in an mmproj file."""

from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, held_bytes
from frameworks.pytorch.generation.weights.packed.gguf_blocks import read_blocks
from frameworks.pytorch.generation.weights.packed.weight import PackedWeight, Selection, WeightSource, dense
from frameworks.text.gguf.config import tensor_of_parameter
from frameworks.text.gguf.folder import GgufModel
from frameworks.text.gguf.header import GgufFile, GgufTensor
from frameworks.text.gguf.vision import VisionPart

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Gemma 3 multiplies by 1 more than the parameter; llama.cpp's converter adds it.
_NORM = "norm.weight"
_ROPE_FACTORS = "rope_freqs.weight"
# llama.cpp rotates neighbours of a head, transformers its halves; its converter changes the order of the rows.
_REORDERED = {"self_attn.q_proj": "attention.head_count", "self_attn.k_proj": "attention.head_count_kv"}


def model_weights(model: GgufModel, enable_memory_mapping: bool = True) -> WeightSource:
    """Return the weights of a model. Without `enable_memory_mapping` they are read into memory, tensor by tensor.

    Raises InvalidModel if a file has become shorter since its header was read.
    """
    text = GgufWeights(_Tensors(model.text, enable_memory_mapping))
    if model.vision is None or model.projector is None:
        return text
    return _VisionWeights(text, _Tensors(model.projector, enable_memory_mapping), model.vision)


class _Tensors:
    """The tensors of a file. They stay in the mapped file until they are read."""

    def __init__(self, file: GgufFile, enable_memory_mapping: bool) -> None:
        self.file = file
        self._enable_memory_mapping = enable_memory_mapping
        try:
            # Private pages: torch has no tensors that may not be written.
            self._bytes = np.memmap(file.path, np.uint8, "c")
        except (OSError, ValueError) as error:
            raise InvalidModel(f"{file.path}: cannot be mapped: {error}") from error
        if len(self._bytes) < file.size_bytes:
            raise InvalidModel(f"{file.path}: expected {file.size_bytes} bytes, got {len(self._bytes)}; did it change?")

    def raw(self, tensor: GgufTensor) -> torch.Tensor:
        """Return the bytes of a tensor, uint8."""
        raw = torch.from_numpy(self._bytes[tensor.start : tensor.start + tensor.size_bytes])
        return raw if self._enable_memory_mapping and not tensor.start % 4 else raw.clone()

    def plain(self, tensor: GgufTensor) -> torch.Tensor:
        """Return a tensor of floats in its shape and dtype."""
        return self.raw(tensor).view(_DTYPES[tensor.block_type.name]).view(tensor.shape)

    def packed(self, tensor: GgufTensor, rows: torch.Tensor | None = None) -> "GgufWeight":
        """Return a matrix of blocks. `rows`: as of GgufWeight."""
        return GgufWeight(self.raw(tensor).view(tensor.shape[0], -1), tensor, rows)

    def floats(self, tensor: GgufTensor) -> torch.Tensor:
        """Return a tensor in float32, dequantized where it is packed."""
        if tensor.block_type.is_plain:
            return self.plain(tensor).float()
        return dense(self.packed(tensor), torch.float32, torch.device("cpu"))


class GgufWeights:
    """A WeightSource of a language model."""

    def __init__(self, tensors: _Tensors) -> None:
        self._file, self._tensors = tensors.file, tensors

    @property
    def name(self) -> str:
        """As WeightSource.name."""
        return str(self._file.path)

    def packed(self, parameter: str) -> PackedWeight | None:
        """As WeightSource.packed."""
        tensor = tensor_of_parameter(self._file, parameter)
        if tensor is None or tensor.block_type.is_plain:
            return None
        return self._tensors.packed(tensor, self._rows(parameter, tensor))

    def plain(self, parameter: str) -> torch.Tensor | None:
        """As WeightSource.plain, in the shape and dtype of the file."""
        tensor = tensor_of_parameter(self._file, parameter)
        if tensor is None or not tensor.block_type.is_plain:
            return None
        found = self._tensors.plain(tensor)
        if parameter.endswith(_NORM) and self._file.text("general.architecture") == "gemma3":
            return found.float() - 1
        rows = self._rows(parameter, tensor)
        return found if rows is None else found.index_select(0, rows)

    def bind(self, model: torch.nn.Module) -> None:
        """As WeightSource.bind."""

    def adjust(self, model: torch.nn.Module) -> None:
        """As WeightSource.adjust: divide the frequencies of the rotation, as Llama 3.1 does for long contexts."""
        tensor = self._file.tensors.get(_ROPE_FACTORS)
        if tensor is None:
            return
        factors = self._tensors.plain(tensor)
        body: Any = model
        frequencies: torch.Tensor = body.get_decoder().rotary_emb.inv_freq
        frequencies.div_(factors.to(frequencies.device, torch.float32))

    def _rows(self, parameter: str, tensor: GgufTensor) -> torch.Tensor | None:
        """Return the row of the file for each row of the parameter, int64; None: in order."""
        architecture = self._file.text("general.architecture")
        module = parameter.partition("model.layers.")[2].partition(".")[2].rpartition(".")[0]
        if architecture != "llama" or module not in _REORDERED:
            return None
        heads = self._file.integer(f"llama.{_REORDERED[module]}", self._file.integer("llama.attention.head_count"))
        return torch.arange(tensor.shape[0]).view(heads, -1, 2).transpose(1, 2).reshape(-1)


class _VisionWeights:
    """A WeightSource of a model that sees: its text decoder in one file, the other parameters in an mmproj file."""

    def __init__(self, text: GgufWeights, tensors: _Tensors, vision: VisionPart) -> None:
        self._text, self._tensors, self._vision = text, tensors, vision

    @property
    def name(self) -> str:
        """As WeightSource.name."""
        return self._text.name

    def packed(self, parameter: str) -> PackedWeight | None:
        """As WeightSource.packed."""
        found = self._vision.parameters.get(parameter)
        if found is None:
            return self._text.packed(self._name_in_text(parameter))
        if len(found.tensors) != 1:
            return None
        tensor = self._tensors.file.tensors[found.tensors[0]]
        return None if tensor.block_type.is_plain else self._tensors.packed(tensor)

    def plain(self, parameter: str) -> torch.Tensor | None:
        """As WeightSource.plain, in the shape and dtype of the file."""
        found = self._vision.parameters.get(parameter)
        if found is None:
            return self._text.plain(self._name_in_text(parameter))
        tensors = [self._tensors.file.tensors[name] for name in found.tensors]
        if not tensors:
            return torch.zeros(found.shape)  # of a layer whose result is not read
        if len(tensors) == 1 and found.is_less_one:
            return self._tensors.floats(tensors[0]) - 1
        if len(tensors) == 1:
            return self._tensors.plain(tensors[0]) if tensors[0].block_type.is_plain else None
        parts = [self._tensors.floats(tensor) for tensor in tensors]
        return torch.cat(parts) if found.join == "rows" else torch.stack(parts, 2)

    def bind(self, model: torch.nn.Module) -> None:
        """As WeightSource.bind."""

    def adjust(self, model: torch.nn.Module) -> None:
        """As WeightSource.adjust."""
        self._text.adjust(model)

    def _name_in_text(self, parameter: str) -> str:
        rest = parameter.removeprefix(self._vision.text_prefix)
        return parameter if rest == parameter else f"model.{rest}"


class GgufWeight:
    """A PackedWeight: blocks, uint8 [outputs, bytes of a row]."""

    order: torch.Tensor | None = None
    is_float = False

    def __init__(self, raw: torch.Tensor, tensor: GgufTensor, rows: torch.Tensor | None) -> None:
        """`rows`: which row of the file each output is; None: in order."""
        self._raw = raw
        self._rows = rows
        self._type = tensor.block_type
        self.outputs, self.inputs = tensor.shape
        self.bits = self._type.bits
        self.held_bytes = held_bytes(self.outputs * self.inputs, self._type.bits, self._type.group)

    def read(self, selection: Selection) -> GroupWeights:
        """As PackedWeight.read."""
        return read_blocks(self._raw[selection if self._rows is None else self._rows[selection]], self._type)
