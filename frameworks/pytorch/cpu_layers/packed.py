"""Linear layers and convolutions of encoders with weights that oneDNN has packed, where that is faster on this CPU.

torch multiplies float32 by MKL, which uses AVX2 on AMD. On one core of a Zen 5, packed weights take 0.4 of the time in
linear layers and in convolutions of 1 x 1. Normalizations are not folded into convolutions: deep networks of such
layers amplify the other rounding, and a DETR gains only 6 %.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache, partial

import torch

from frameworks.core.settings.entries import Kernels
from frameworks.pytorch import kernels
from frameworks.pytorch.kernels import shortest_seconds
from memory.mapped_files import MappedFiles

_LINEAR, _ROWS = (768, 768), (16, 128)
"""Inputs and outputs of the layer that is measured, and numbers of rows."""
_CONVOLUTIONS = ((256, 64), (64, 256))
"""Input and output channels of 1 x 1. Larger kernels gain less, by the order of the channels."""
_SIDE = 40
"""Of the images of a convolution that is measured, and for which weights are packed, in pixels."""
_IMAGE_AXES = 4
_TOLERANCE = 1e-4
_MIN_WEIGHTS = 4096
"""A smaller layer, such as the head of a classifier, takes no time."""
_MAX_PACKED_TIME = 0.9
_FEW_ROWS, _ROW_STEP, _MAX_EXACT_ROWS, _ROUNDING_BITS = 64, 16, 8, 4
_exact_rows: dict[tuple[int, int], set[int]] = {}
"""The numbers of rows that are not padded, by the shape of the weights."""
_OWN_REFERENCES = 2
"""Of the storage of a weight: that of its layer, and that of the one who counts."""
PACKINGS: tuple[Kernels, ...] = ("auto", "plain", "onednn")
"""The kernels of an entry: "auto" packs where that is faster, "onednn" where it is possible, "plain" nowhere."""


class PackedLayer(torch.nn.Module):
    """A layer with packed weights, float32. A model that reads `weight` gets those of torch's order, and the layer
    computes with them from then on: transformers' modules of a few models multiply by the weights of their layers.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: torch.nn.Linear | torch.nn.Conv2d, packed: torch.Tensor) -> None:
        """`packed`: the weights of `layer`."""
        super().__init__()
        self._packed: torch.Tensor | None = packed
        self._plain: torch.Tensor | None = None
        self._shape = layer.weight.shape
        self.weight_bytes: int = layer.weight.nbytes
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    @property
    def weight(self) -> torch.Tensor:
        """The weights in torch's order."""
        packed = self._packed
        if packed is not None:
            self._plain = packed.to_dense().reshape(self._shape)
            self._packed = None
        assert self._plain is not None
        return self._plain


class PackedLinear(PackedLayer):
    """As torch.nn.Linear."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        """Raises RuntimeError where the CPU has no instructions for it."""
        super().__init__(layer, kernels.pack(layer.weight.detach()))
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        if (packed := self._packed) is None:
            return torch.nn.functional.linear(values, self.weight, self.bias)
        return _linear(values, packed, self.bias, self.out_features)


class PackedConv2d(PackedLayer):
    """As torch.nn.Conv2d with padding of zeros. The result has its channels last in memory."""

    def __init__(self, layer: torch.nn.Conv2d) -> None:
        """Raises RuntimeError where the CPU has no instructions for it."""
        assert not isinstance(layer.padding, str)
        self.in_channels, self.out_channels, self.kernel_size = layer.in_channels, layer.out_channels, layer.kernel_size
        self.stride, self.padding, self.dilation, self.groups = (
            layer.stride, layer.padding, layer.dilation, layer.groups,
        )  # fmt: skip
        self._options = ([*layer.padding], [*layer.stride], [*layer.dilation], layer.groups)
        weight = layer.weight.detach().contiguous()
        # With channels last the pixels are the rows of a linear layer, whose packed weights suit any number of them.
        self._is_linear = layer.kernel_size == (1, 1) and layer.padding == (0, 0)
        if self._is_linear:
            packed = kernels.pack(weight.flatten(1))
        else:
            pairs = zip(layer.kernel_size, layer.dilation, strict=True)
            sides = [max(_SIDE, size * step) for size, step in pairs]
            packed = torch.ops.mkldnn._reorder_convolution_weight(
                weight, *self._options, [1, layer.in_channels, *sides]
            )
        super().__init__(layer, packed)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[batch, input channels, height, width] → [batch, output channels, …]."""
        padding, stride, dilation, groups = self._options
        if (packed := self._packed) is None:
            return torch.nn.functional.conv2d(values, self.weight, self.bias, stride, padding, dilation, groups)
        if self._is_linear:
            pixels = values[..., :: stride[0], :: stride[1]].permute(0, 2, 3, 1).contiguous()
            return _linear(pixels, packed, self.bias, self.out_channels).permute(0, 3, 1, 2)
        values = values.contiguous(memory_format=torch.channels_last)
        result: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            values, packed, self.bias, *self._options, "none", [], ""
        )
        return result


def _linear(values: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outputs: int) -> torch.Tensor:
    """[…, inputs] → […, outputs]."""
    inputs = values.shape[-1]
    rows = values.numel() // inputs
    padded = _padded_rows(rows, (outputs, inputs))
    if padded > rows:
        whole = values.new_empty(padded, inputs)
        whole[:rows] = values.reshape(rows, inputs)
        whole[rows:] = 0
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        values if padded == rows else whole, packed, bias, "none", [], ""
    )
    return result if padded == rows else result[:rows].view(*values.shape[:-1], outputs)


def _padded_rows(rows: int, shape: tuple[int, int]) -> int:
    """Return the number of rows with padding: above 64 rows 1 in 25 more on average, 1 in 8 more at most.

    oneDNN compiles machine code for each number of rows and each shape of weights, in 0.3 ms, and keeps it, in 0.6 MB.
    So batches of up to 8,192 tokens have 68 numbers of rows. Images of one size have few: those are not padded.
    """
    if rows <= _FEW_ROWS:
        return -(-rows // _ROW_STEP) * _ROW_STEP
    exact = _exact_rows.setdefault(shape, set())
    if rows in exact:
        return rows
    if len(exact) < _MAX_EXACT_ROWS:
        exact.add(rows)
        return rows
    step = 1 << (rows.bit_length() - _ROUNDING_BITS)
    return -(-rows // step) * step


class FilesOfWeights:
    """The mapped files of a model's weights. `shared`: addresses of weights that several modules have: packed weights
    would be another copy.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._files = MappedFiles()
        self.shared = _shared(model)

    def give_back(self, weight: torch.Tensor) -> None:
        """Free the pages of weights of which there is a copy now. A view of the weights elsewhere keeps them."""
        count = torch._C._storage_Use_Count(weight.untyped_storage()._cdata)
        if weight.data_ptr() not in self.shared and count <= _OWN_REFERENCES:
            self._files.give_back(weight.data_ptr(), weight.nbytes)


def pack_layers(model: torch.nn.Module, wanted: Kernels, kept: Set[torch.nn.Module] = frozenset()) -> None:
    """Pack the weights of a float32 model on a CPU, layer by layer. The model is in eval mode.

    `wanted`: one of PACKINGS. `kept`: layers that stay as they are.
    """
    if wanted == "plain":
        return
    is_forced = wanted == "onednn"
    files, parents = FilesOfWeights(model), _parents(model)
    # A layer's own weights are freed before the next one is packed.
    while parents:
        layer, locations = parents.popitem()
        make = None if layer in kept else packer_of(layer, is_forced, files.shared)
        if make is not None:
            packed = make()
            for parent, name in locations:
                setattr(parent, name, packed)
            assert isinstance(layer.weight, torch.Tensor)
            files.give_back(layer.weight)


def packed_layer_bytes(modules: Iterable[torch.nn.Module]) -> int:
    """Return the bytes of the packed weights among modules."""
    return sum(module.weight_bytes for module in modules if isinstance(module, PackedLayer))


def _parents(model: torch.nn.Module) -> dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]]:
    """Return for each module those that hold it, with its name there."""
    found: dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                found.setdefault(child, []).append((parent, name))
    return found


def packer_of(
    layer: torch.nn.Module, is_forced: bool = False, shared: Set[int] = frozenset()
) -> Callable[[], PackedLayer] | None:
    """Return what packs a layer; None where it stays as it is.

    `is_forced`: also where packed weights are slower. `shared`: addresses of weights that stay.
    """
    # A subclass computes something else.
    if type(layer) not in (torch.nn.Linear, torch.nn.Conv2d) or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    assert isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
    weight = layer.weight
    is_float = weight.dtype == torch.float32 and weight.device.type == "cpu" and kernels.packs(torch.float32)
    if not is_float or weight.numel() < _MIN_WEIGHTS or weight.data_ptr() in shared:
        return None
    if isinstance(layer, torch.nn.Linear):
        return partial(PackedLinear, layer) if is_forced or packs_linear() else None
    if layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    return partial(PackedConv2d, layer) if is_forced or _packs_convolutions() else None


def _shared(model: torch.nn.Module) -> set[int]:
    """Return the addresses of weights that several modules have."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            address = weight.data_ptr()
            (shared if address in seen else seen).add(address)
    return shared


@cache
def packs_linear() -> bool:
    """Return whether packed weights of linear layers are faster than plain ones on this CPU."""
    inputs, outputs = _LINEAR
    return _is_faster(torch.nn.Linear(inputs, outputs), PackedLinear, [torch.ones(rows, inputs) for rows in _ROWS])


@cache
def _packs_convolutions() -> bool:
    """One choice for all: between packed convolutions the channels stay last."""
    return all(
        _is_faster(torch.nn.Conv2d(inputs, outputs, 1), PackedConv2d, [torch.ones(1, inputs, _SIDE, _SIDE)])
        for inputs, outputs in _CONVOLUTIONS
    )


def _is_faster(
    layer: torch.nn.Linear | torch.nn.Conv2d, pack: Callable[..., PackedLayer], inputs: Sequence[torch.Tensor]
) -> bool:
    """Return whether packed weights take less time for all of the inputs together, and give the same result."""
    layer.eval().requires_grad_(False)
    plain_s = packed_s = 0.0
    try:
        packed = pack(layer)
        for values in inputs:
            arranged = values.contiguous(memory_format=torch.channels_last) if values.ndim == _IMAGE_AXES else values
            with torch.inference_mode():
                if not torch.allclose(packed(arranged), layer(values), rtol=_TOLERANCE, atol=_TOLERANCE):
                    return False
            found = shortest_seconds({"plain": partial(layer, values), "packed": partial(packed, arranged)})
            plain_s, packed_s = plain_s + found["plain"], packed_s + found["packed"]
    except RuntimeError:
        return False
    return packed_s < _MAX_PACKED_TIME * plain_s
