"""How many bytes a model needs, by the headers of its files: its weights, and its states or its KV cache."""

import torch

from frameworks.core.devices import Device
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch import device_kernels, kernels
from frameworks.pytorch.compiled.cpu_features import AVX512_LANES, lanes
from frameworks.pytorch.encoders.images.folders import find_images
from frameworks.pytorch.encoders.loading import ModelFiles
from frameworks.pytorch.loader import DTYPES, default_dtype
from frameworks.pytorch.weights import WeightFiles

_INT8_BYTES_PER_ELEMENT = 2
_THREE_PARTS_BYTES = 6
"""Of a float32 weight as three bfloat16, see compiled/dtypes/float32_bfloat16x3.py."""
_HOST = Device("cpu", 0, "", 0, 0)


class NeededBytes:
    """The estimates that reserve memory before a load."""

    def __init__(self, performance: PerformanceSettings) -> None:
        self._performance = performance

    def of(self, files: ModelFiles, kind: str) -> int:
        """Return the bytes of a model on the host (`cpu`) or on an accelerator, or of one of its ranks."""
        dtype = dtype_on(files, kind)
        size = DTYPES[dtype].itemsize
        if files.entry.tensor_parallel > 1 and files.config.generates:
            from frameworks.pytorch.generation.tensor_parallel.checks import rank_weight_bytes

            ranks = files.entry.tensor_parallel
            weight_bytes = rank_weight_bytes(files.folder, ranks, files.weights.elements, size)
            return weight_bytes + self._kv_bytes(files, dtype, kind) // ranks
        # Linear layers of 8 bits take one byte per weight, embedding tables keep their dtype.
        weight_size = _INT8_BYTES_PER_ELEMENT if self._quantizes(files.entry) else size
        packed, weights = files.packed, files.weights.elements * weight_size
        if packed is not None:
            keeps_bits = kind == "cpu" or (kind == "cuda" and _has_kernels())
            weights += packed.held_bytes if keeps_bits else packed.elements * weight_size
            # Float8 has no kernels on a CPU.
            weights += packed.float_elements * (weight_size - 1) if kind == "cpu" else 0
        if kind == "cpu" and dtype == "f32" and not files.config.generates and _has_three_parts(files.entry):
            weights += files.weights.elements * (_THREE_PARTS_BYTES - size)
        more_bytes = self._kv_bytes if files.config.generates else self._state_bytes
        return weights + more_bytes(files, dtype, kind) + _adapter_elements(files.entry) * size

    def max_rows(self, entry: TorchModelEntry) -> int:
        """Return the most texts, images or sequences of one run or step."""
        return entry.max_batch_size or self._performance.max_batch_size

    def _state_bytes(self, files: ModelFiles, dtype: str, _: str) -> int:
        """Of an encoder: the last layer's states of the largest batch."""
        if (images := find_images(files.folder)) is not None:
            return images.state_bytes(self.max_rows(files.entry))
        tokens = self.max_rows(files.entry) * files.config.max_tokens
        return min(tokens, files.entry.max_batch_tokens or tokens) * files.config.hidden_size * DTYPES[dtype].itemsize

    def _kv_bytes(self, files: ModelFiles, dtype: str, kind: str) -> int:
        """Of a language model: its KV cache, and the copy of an embedding table that the last layer packs."""
        from frameworks.pytorch.generation.step.shape import NotPaged, kv_bytes, max_cache_bytes, read_shape

        if files.config.has_encoder:
            from frameworks.pytorch.generation.encoder_decoder.shape import read_encoder_decoder_shape

            of_both = read_encoder_decoder_shape(files.folder, dtype, files.entry.kv_cache_dtype)
            return of_both.kv_bytes(files.entry, self.max_rows(files.entry), kind)
        try:
            shape = read_shape(files.folder, dtype, files.entry.kv_cache_dtype)
        except NotPaged:
            return max_cache_bytes(files.entry, kind)
        is_copied = kind == "cpu" and (self._quantizes(files.entry) or lanes() > 0 or kernels.packs(DTYPES[dtype]))
        is_packed = files.packed is not None and files.packed.gguf is not None and files.packed.elements > 0
        copy_bytes = shape.shared_elements * DTYPES[dtype].itemsize if is_copied and not is_packed else 0
        return kv_bytes(files.entry, shape, self.max_rows(files.entry), kind) + copy_bytes

    def _quantizes(self, entry: TorchModelEntry) -> bool:
        return entry.dtype in ("int8", "int4") and self._performance.enable_quantization


def _has_three_parts(entry: TorchModelEntry) -> bool:
    """Return whether the float32 weights of an encoder may be packed for AMX. Imports no numba."""
    return entry.kernels in ("auto", "compiled") and lanes() == AVX512_LANES and torch.cpu._is_amx_tile_supported()


def dtype_of(entry: TorchModelEntry) -> str | None:
    """Return the dtype of the arithmetic that an entry names; None: that of the device."""
    return entry.dtype if entry.dtype in DTYPES else None


def dtype_on(files: ModelFiles, kind: str) -> str:
    """Return the dtype of the arithmetic. The default of an accelerator has 16 bits."""
    return dtype_of_weights(files.entry, files.weights, kind)


def dtype_of_weights(entry: TorchModelEntry, weights: WeightFiles, kind: str) -> str:
    return dtype_of(entry) or (default_dtype(_HOST, weights.dtype) if kind == "cpu" else "f16")


def _has_kernels() -> bool:
    """Return whether packed weights keep their bits on this machine's CUDA devices."""
    return device_kernels.are_available(torch.device("cuda", 0))


def _adapter_elements(entry: TorchModelEntry) -> int:
    """Return the number of weights of all adapters. Raises InvalidModel."""
    if not entry.adapters:
        return 0
    from frameworks.pytorch.generation.decoders.adapters.files import read_adapter

    return sum(read_adapter(each.path).elements for each in entry.adapters)
