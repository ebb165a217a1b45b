"""Quantize encoders to int8: Linear layers with 8-bit weights per output channel, and rows rounded at run time.

On MiniLM and one core with VNNI: 2.7 times the texts/s of f32 (torchao's dynamic int8 1.6 times, its weight-only int8
0.9 times, torch.ao's deprecated quantize_dynamic 3.4 times at a cosine of 0.93). On ViT-B/16 and one core with AVX2:
1.3 to 1.5 times the images/s.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel, ModelFailed
from frameworks.core.progress import phase, step, working
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch import device_kernels
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.cpu_layers.compiled import CompiledLayer
from frameworks.pytorch.cpu_layers.packed import PackedLayer, packer_of
from frameworks.pytorch.int8_choice import ENCODER_ROWS, Matmul, choose_int8, log_choice
from frameworks.pytorch.int8_matmul import INT8_SIZE_MULTIPLE, Int8Kernel, quantize_activations
from frameworks.pytorch.weights import WeightFiles
from frameworks.quantization.comparison import OutputComparison, check_cosine, compare, warn_if_slower
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.ranges import cpu_capability
from frameworks.runtime import BatchModel
from frameworks.types import Batch, QuantizationReport, Value

if TYPE_CHECKING:
    from frameworks.pytorch.encoder_layers.layers import CompiledLayers

Layers = Mapping[tuple[torch.nn.Module, str], torch.nn.Module]


class Int8Linear(torch.nn.Module):
    """A Linear layer with int8 weights and one scale for each output.

    Each row of activations is quantized by its absolute maximum, so no row's result depends on its neighbours.
    Accumulators are int32. The result has the dtype of the input.
    """

    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernel: Int8Kernel) -> None:
        """`weight`: [outputs, inputs]. They are quantized to the range in which `kernel` does not saturate."""
        super().__init__()
        self._product = kernel.pack(weight)
        outputs, inputs = weight.shape
        self.weight_bytes = kernel.product.held_bytes(outputs, inputs)
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        rows, scale = quantize_activations(values.reshape(-1, values.shape[-1]).float())
        output = self._product(rows).mul_(scale)
        if self.bias is not None:
            output.add_(self.bias)
        return output.to(values.dtype).reshape(*values.shape[:-1], -1)


def held_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's weights, with those of its int8 and its packed layers."""
    tensors = [*model.parameters(), *model.buffers()]
    kinds = (Int8Linear, PackedLayer, CompiledLayer)
    layer_bytes = sum(each.weight_bytes for each in model.modules() if isinstance(each, kinds))
    return layer_bytes + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_bits_run_on(dtype: str, device: Device, folder: Path) -> None:
    """Raise InvalidModel for a device without a matmul of such weights. `dtype`: int8 or int4."""
    if device.kind == "cpu" or (dtype == "int8" and device.kind == "cuda"):
        return
    reason = device_kernels.unavailable_because(torch.device(device.id))
    if reason is None:
        return
    devices = "a CPU or CUDA device" if dtype == "int8" else "a CPU, or a CUDA device from Ampere on,"
    got = f"{device.id}: {reason}" if device.kind == "cuda" else device.id
    raise InvalidModel(
        f'{folder}: dtype: expected {devices} for "{dtype}", got {got}; set device = "cpu" or dtype = "f16"'
    )


def quantize_encoder(
    model: torch.nn.Module,
    encoder: BatchModel,
    make_batches: Callable[[], Sequence[Batch]],
    entry: TorchModelEntry,
    weights: WeightFiles,
    copies: QuantizedCopies,
) -> QuantizationReport:
    """Replace the model's Linear layers by int8 layers.

    `encoder`: computes responses with this model. It is compared with its original on the batches, once for each
    content of the weight files; later loads find the report in `cache_dir`. Raises InvalidModel if there is nothing to
    quantize, if the int8 model is too far off, and if `cache_dir` is not writable.
    """
    folder = weights.files[0].parent
    linears = _linears(model)
    if not linears:
        raise InvalidModel(f'{folder}: dtype: expected a Linear layer for "int8", got none; remove dtype')
    largest = max(linears.values(), key=lambda linear: linear.weight.numel())
    choice = choose_int8(largest.weight, ENCODER_ROWS, _original_matmul)
    log_choice(choice, entry.name)
    kernel_name, weight_range = choice.kernel.name, choice.kernel.weight_range.name
    compiled = _compiled(model, choice.kernel, entry.name) if encoder.spec.device == "cpu" else {}
    if compiled:
        kernel_name, weight_range = "compiled", "grouped"
        int8s: dict[tuple[torch.nn.Module, str], torch.nn.Module] = {}
        for each, layers in compiled.items():
            int8s |= each.modules(layers)
        replaced = {location: getattr(*location) for location in int8s}
        for each, layers in compiled.items():
            each.install(layers)
    else:
        int8s = dict(_quantized(linears, choice.kernel))
        replaced = dict(linears)

    def measure(_: Path) -> QuantizationReport:
        originals = {location: make() if (make := packer_of(each)) else each for location, each in replaced.items()}
        found = _measured(encoder, make_batches(), originals, int8s, compiled).report(
            "int8", weights.file_bytes, held_bytes(model)
        )
        return replace(found, kernel=kernel_name, weights=weight_range)

    _put(int8s)
    arithmetic = f"{encoder.spec.device}, {encoder.spec.dtype}, {kernel_name}, {weight_range}"
    made_by = f"torch {torch.__version__}, {arithmetic}, {cpu_capability()}"
    _, report = copies.get([*weights.files, folder / "config.json"], "torch-int8", made_by, measure)
    remedies = 'dtype = "bf16" or "f16" is nearer, dtype left out is the original'
    check_cosine(report, entry.min_cosine, folder, remedies)
    warn_if_slower(report, entry.name, "remove dtype")
    return replace(report, kernels=choice.trials)


def _compiled(
    model: torch.nn.Module, kernel: Int8Kernel, name: str
) -> "Mapping[CompiledLayers, Sequence[torch.nn.Module]]":
    """Return the encoders in a model with compiled layers, where these are faster than int8 layers of a kernel."""
    if not lanes():
        return {}
    # A server without compiled kernels needs none of it.
    from frameworks.pytorch.encoder_layers.choice import int8_layers

    def rival(layer: torch.nn.Module) -> torch.nn.Module:
        _put({location: Int8Linear(each.weight, each.bias, kernel) for location, each in _linears(layer).items()})
        return layer

    return int8_layers(model, rival, name)


def _quantized(linears: Mapping[tuple[torch.nn.Module, str], torch.nn.Linear], kernel: Int8Kernel) -> Layers:
    made: dict[tuple[torch.nn.Module, str], torch.nn.Module] = {}
    with working("quantize"):
        phase("layers", len(linears), "layers")
        for location, each in linears.items():
            made[location] = Int8Linear(each.weight, each.bias, kernel)
            step()
    return made


def _original_matmul(weight: torch.Tensor) -> Matmul:
    """Return the matmul of the model without quantization: that of packed weights where they are faster."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    make = packer_of(layer)
    return layer if make is None else make()


def _measured(
    encoder: BatchModel, batches: Sequence[Batch], linears: Layers, int8s: Layers, compiled: "Iterable[CompiledLayers]"
) -> OutputComparison:
    """Compare int8 layers with the original. `compiled`: those that compute several layers."""

    def original(batch: Batch) -> dict[str, Value]:
        with _in_place(linears, int8s):
            for each in compiled:
                each.is_used = False
            try:
                return encoder.infer(batch)
            finally:
                for each in compiled:
                    each.is_used = True

    try:
        return compare(original, encoder.infer, batches)
    except (RuntimeError, ModelFailed) as error:
        first_line, _, _ = str(error).partition("\n")
        raise InvalidModel(
            f'int8 does not run on {encoder.spec.device}: {first_line}; remove dtype = "int8"'
        ) from error


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
