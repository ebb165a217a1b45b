"""Quantise encoders to int8: Linear layers with 8-bit weights per output channel, and rows rounded at run time.

On MiniLM and one core with VNNI: 2.7 times the texts/s of f32 (torchao's dynamic int8 1.6 times, its weight-only int8
0.9 times, torch.ao's deprecated quantize_dynamic 3.4 times at a cosine of 0.93).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from frameworks.devices import Device
from frameworks.errors import InvalidModel, ModelFailed
from frameworks.pytorch.encoder import EncoderModel
from frameworks.pytorch.kernels import LARGEST_INT8, Int8Kernel, int8_kernel
from frameworks.pytorch.weights import WeightFiles
from frameworks.quantization.comparison import check_cosine, compare
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.warm_up_texts import WARM_UP_TEXTS
from frameworks.settings import TorchModelEntry
from frameworks.types import Batch, QuantizationReport, TokenBatch, Value

_TEXTS_PER_BATCH = 8
INT8_SIZE_MULTIPLE = 8
"""cuBLAS multiplies int8 only where inputs and outputs are multiples of it."""
_TINY = 1e-12

Layers = Mapping[tuple[torch.nn.Module, str], torch.nn.Module]


class Int8Linear(torch.nn.Module):
    """A Linear layer with int8 weights [outputs, inputs] and one scale for each output.

    Each row is rounded to int8 by its own largest number, so no row's result depends on its neighbours. Products are
    added up in int32. The result has the dtype of the input.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear, kernel: Int8Kernel) -> None:
        """Round the weights as far as `kernel` multiplies them without overflow, and keep them in its order."""
        super().__init__()
        self._kernel = kernel
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / kernel.largest_weight).clamp(min=_TINY)
        self.register_buffer("weight", kernel.pack(torch.round(weight / scale[:, None]).to(torch.int8)))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        rows = values.reshape(-1, values.shape[-1]).float()
        scale = rows.abs().amax(dim=1, keepdim=True).div_(LARGEST_INT8).clamp_(min=_TINY)
        output = self._kernel.multiply((rows / scale).round_(), self.weight, self.scale).mul_(scale)
        if self.bias is not None:
            output.add_(self.bias)
        return output.to(values.dtype).reshape(*values.shape[:-1], -1)


def check_int8_runs_on(device: Device, folder: Path) -> None:
    """Raise InvalidModel for a device without a product of int8 matrices in torch."""
    if device.kind not in ("cpu", "cuda"):
        raise InvalidModel(
            f'{folder}: dtype: expected a CPU or CUDA device for "int8", got {device.id}; set device = "cpu" or '
            'dtype = "f16"'
        )


def quantize_encoder(
    model: torch.nn.Module, encoder: EncoderModel, entry: TorchModelEntry, weights: WeightFiles, copies: QuantizedCopies
) -> QuantizationReport:
    """Replace the model's Linear layers by int8 layers.

    `encoder`: computes responses with this model. It is compared with its original once for each content of the weight
    files; later loads find the report in `cache_dir`. Raises InvalidModel if there is nothing to quantise, if the int8
    model is too far off, and if `cache_dir` is not writable.
    """
    folder = weights.files[0].parent
    linears = _linears(model)
    if not linears:
        raise InvalidModel(f'{folder}: dtype: expected a Linear layer for "int8", got none; remove dtype')
    kernel = int8_kernel(torch.device(encoder.spec.device).type)
    int8s: Layers = {place: Int8Linear(linear, kernel) for place, linear in linears.items()}

    def measure(_: Path) -> QuantizationReport:
        after = [*model.parameters(), *model.buffers()]
        bytes_after = sum(tensor.numel() * tensor.element_size() for tensor in after)
        return _measured(encoder, linears, int8s, weights.file_bytes, bytes_after)

    _put(int8s)
    arithmetic = f"{encoder.spec.device}, {encoder.spec.dtype}, {kernel.name}, up to {kernel.largest_weight}"
    made_by = f"torch {torch.__version__}, {arithmetic}"
    _, report = copies.get([*weights.files, folder / "config.json"], "torch-int8", made_by, measure)
    remedies = 'dtype = "bf16" or "f16" is nearer, dtype left out is the original'
    check_cosine(report, entry.min_cosine, folder, remedies)
    return report


def _measured(
    encoder: EncoderModel, linears: Layers, int8s: Layers, bytes_before: int, bytes_after: int
) -> QuantizationReport:
    assert encoder.tokenizer is not None
    token_ids = sorted(encoder.tokenizer.tokenize([*WARM_UP_TEXTS], truncate=True), key=len)
    starts = range(0, len(token_ids), _TEXTS_PER_BATCH)
    batches: Sequence[Batch] = [TokenBatch(token_ids[start : start + _TEXTS_PER_BATCH]) for start in starts]

    def original(batch: Batch) -> dict[str, Value]:
        with _in_place(linears, int8s):
            return encoder.infer(batch)

    try:
        found = compare(original, encoder.infer, batches)
    except (RuntimeError, ModelFailed) as error:
        first_line, _, _ = str(error).partition("\n")
        raise InvalidModel(
            f'int8 does not run on {encoder.spec.device}: {first_line}; remove dtype = "int8"'
        ) from error
    return QuantizationReport("int8", found.cosine_min, found.cosine_mean, found.speedup, bytes_before, bytes_after)


def _linears(model: torch.nn.Module) -> dict[tuple[torch.nn.Module, str], torch.nn.Linear]:
    """Return the layers of sizes that every device multiplies; a classifier's last layer, a few labels wide, stays."""
    return {
        (parent, name): child
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is torch.nn.Linear
        and not any(size % INT8_SIZE_MULTIPLE for size in (child.in_features, child.out_features))
    }


def _put(layers: Layers) -> None:
    for (parent, name), layer in layers.items():
        setattr(parent, name, layer)


@contextmanager
def _in_place(layers: Layers, usual: Layers) -> Iterator[None]:
    _put(layers)
    try:
        yield
    finally:
        _put(usual)
