"""Make the linear layers of a language model as its entry asks: in its dtype, in int8 or in int4."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers.pytorch_utils import Conv1D

from frameworks.core.errors import InvalidModel
from frameworks.pytorch import device_kernels
from frameworks.pytorch.generation.weights.compiled_linears import GROUP
from frameworks.pytorch.generation.weights.cpu_kernels import (
    GROUPED,
    CpuKernel,
    float16_is_exact,
    float_kernels,
    int4_kernels,
    int8_kernels,
)
from frameworks.pytorch.generation.weights.device_linear import DEVICE_KERNEL, DeviceGroupLinear, has_kernel
from frameworks.pytorch.generation.weights.group_linear import (
    DeferredGroupLinear,
    QuantizedGroupLinear,
    ReadGroups,
    int8_chooser,
    make_group_linear,
    quantizing_kernels,
)
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, held_bytes, quantize_groups
from frameworks.pytorch.generation.weights.kernel_choice import KernelChooser, packed_bytes
from frameworks.pytorch.generation.weights.linear import Linear, PlainLinear, QuantizedLinear, can_quantize
from frameworks.pytorch.int8_choice import MAX_BYTES_PER_WEIGHT, largest_error
from frameworks.pytorch.int8_matmul import Int8Kernel, TorchMatmul
from frameworks.pytorch.kernels import shortest_seconds_beside_steps
from frameworks.types import ProductTrial

Bits = Literal["int8", "int4"]


class LinearMaker:
    """Makes the layers of one model, and counts their bytes. Used by one thread.

    The head of an int4 model is int8: its errors are those of the logits.
    """

    def __init__(
        self, model: Any, folder: Path, bits: Bits | None, kernels: str = "auto", *, defers_compiled: bool = False
    ) -> None:
        """`model`: of transformers, on its device. `bits`: None for its dtype. `kernels`: the setting.
        `defers_compiled`: make the layers without compiled kernels, which `later` makes. Only for a CPU, without a
        named kernel.

        Raises InvalidModel for a kernel that this CPU or this dtype does not have.
        """
        self._bits = bits
        # Triton's interpreter runs the kernels of a device on a CPU, in tests.
        self._has_kernels = device_kernels.are_available(model.device)
        self._is_on_cpu = model.device.type == "cpu" and not self._has_kernels
        self._dtype: torch.dtype = model.dtype
        self._on_device: Counter[tuple[int, int]] = Counter()
        tables = {each.weight.data_ptr() for each in model.modules() if isinstance(each, torch.nn.Embedding)}
        self._tables = frozenset(tables)
        head = model.get_output_embeddings()
        # A packed head has no weight of its own.
        self._head = head.weight.data_ptr() if hasattr(head, "weight") else None
        products = linear_weights(model)
        tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
        replaced = {id(each): each for each in products if each.data_ptr() not in tables}
        # Transposed weights of GPT-2's layers are views.
        self._each_once: int = sum(tensor.nbytes for tensor in tensors.values())
        self._kept_bytes: int = self._each_once - sum(each.nbytes for each in replaced.values())
        self._tied_bytes: int = sum(each.nbytes for each in products if each.data_ptr() in tables)
        self._plain_bytes = 0
        self._group_int8 = int8_chooser()
        self._group_bytes = 0
        usual = list(float_kernels(model.dtype)) if self._is_on_cpu else []
        self._all_kernels = tuple(usual)
        self._itemsize: int = model.dtype.itemsize
        self._is_deferred = defers_compiled
        self._later_bytes = 0
        self._fits_float16: bool | None = None
        if defers_compiled and bits is None:
            usual = [each for each in usual if each.code is None and each.restores]
        self._is_tied_copied = bool(usual) and usual[0].copies
        self._choosers: list[KernelChooser] = []
        if self._is_on_cpu:
            *narrower, last = _lists(bits, usual, kernels, folder, defers_compiled=defers_compiled)
            self._choosers = [self._chooser(found, usual, model.dtype.itemsize) for found in narrower]
            max_error = None if bits is None else largest_error
            self._choosers.append(self._chooser(last, usual, model.dtype.itemsize, max_error))

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Make a layer of weights [outputs, inputs]."""
        if not self._is_on_cpu:
            return self._make_on_accelerator(weight, bias)
        if self._is_deferred and self._bits is None:
            self._later_bytes += packed_bytes(weight, self._itemsize)
        if self._is_deferred and self._fits_float16 is None:
            self._fits_float16 = float16_is_exact(weight)
        is_head = weight.data_ptr() == self._head and self._bits == "int4"
        choosers = self._choosers[-1:] if is_head else self._choosers
        return next(each for each in choosers if each.fits(weight))(weight, bias)

    def make_group(self, read: ReadGroups, bias: torch.Tensor | None) -> Linear:
        """Make a layer of weights that a file holds as int8 or int4. `bias`: [outputs]."""
        if not self._is_on_cpu:
            return self._group_on_accelerator(read(), bias)
        if self._is_deferred:
            deferred = DeferredGroupLinear(read, bias)
            self._group_bytes += deferred.held_bytes
            return deferred
        weights = read()
        before = self._group_int8.held_bytes
        linear = make_group_linear(weights, bias, self._group_int8)
        if self._group_int8.held_bytes == before:
            self._group_bytes += held_bytes(weights.values.numel(), weights.bits, weights.group)
        return linear

    def later(self) -> "LaterLinears":
        """Return the maker of the layers with all kernels, for layers that were made without the compiled ones."""
        chooser = KernelChooser(
            self._all_kernels, max_bytes=self._itemsize, shared=self._tables, measure=shortest_seconds_beside_steps
        )
        return LaterLinears(
            chooser, int8_chooser(shortest_seconds_beside_steps), self._later_quantized(4), self._later_quantized(8)
        )

    def _later_quantized(self, bits: int) -> KernelChooser:
        """Return the maker of compiled layers of weights that the load has quantized. Beside the compiled kernel only
        the original's is timed.
        """
        kernels = [each for each in (int4_kernels() if bits == 4 else int8_kernels()) if each.code is not None]
        halves = [replace(each, fits=lambda _: True) for each in self._all_kernels if each.fits is float16_is_exact]
        original = [*[each for each in self._all_kernels if each.fits is not float16_is_exact][:1], *halves[:1]]
        if not self._fits_float16:
            original = original[:1]
        return KernelChooser(kernels, original, max_bytes=MAX_BYTES_PER_WEIGHT, measure=shortest_seconds_beside_steps)

    def held_bytes_with(self, later: "LaterLinears") -> int:
        """Return the bytes of a model whose layers are all quantized, and made by `later`."""
        return self._kept_bytes + later.int4.held_bytes + later.quantized.held_bytes

    @property
    def products(self) -> tuple[ProductTrial, ...]:
        """The kernel of each shape of a CPU's layers, and of quantized layers of a device, most weights first."""
        on_device = [ProductTrial(*shape, layers, DEVICE_KERNEL, GROUPED) for shape, layers in self._on_device.items()]
        return _by_weights((*self._choosers, self._group_int8), on_device)

    @property
    def original_bytes(self) -> int:
        """Bytes of the weights in the model's dtype. Weights that are also an embedding table are held twice if
        the linear layer packs them.
        """
        return self._each_once + (self._tied_bytes if self._is_tied_copied else 0)

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights, with those of the layers made so far, or of later ones if these take more."""
        layers = sum(each.held_bytes for each in (*self._choosers, self._group_int8))
        return self._kept_bytes + self._plain_bytes + self._group_bytes + max(layers, self._later_bytes)

    def _chooser(
        self,
        kernels: Sequence[CpuKernel],
        usual: Sequence[CpuKernel],
        itemsize: int,
        max_error: Callable[[torch.Tensor], float] | None = None,
    ) -> KernelChooser:
        """`max_error`: of int8. A kernel that is forced, and int4, have no such bound."""
        if self._bits is None:
            return KernelChooser(kernels, max_bytes=itemsize, shared=self._tables)
        halves = [each for each in usual if each.fits is float16_is_exact]
        original = [*[each for each in usual if each not in halves][:1], *halves[:1]]
        if self._is_deferred:
            # `later` times it.
            original = []
        return KernelChooser(kernels, original, max_bytes=MAX_BYTES_PER_WEIGHT, max_error=max_error)

    def _group_on_accelerator(self, weights: GroupWeights, bias: torch.Tensor | None) -> Linear:
        """Make a layer of weights in groups, which keep their bits where the device has a kernel for them."""
        if self._has_kernels and has_kernel(weights):
            linear = DeviceGroupLinear(weights, bias)
            self._group_bytes += linear.held_bytes
            return linear
        dense = weights.dense(self._dtype)
        self._plain_bytes += dense.nbytes
        return PlainLinear(dense, bias)

    def _make_on_accelerator(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._has_kernels and self._bits is not None and not weight.shape[1] % (2 * GROUP):
            bits = 8 if self._bits == "int8" or weight.data_ptr() == self._head else 4
            self._on_device[weight.shape[0], weight.shape[1]] += 1
            return self._group_on_accelerator(quantize_groups(weight, bits, GROUP), bias)
        if self._bits == "int8" and can_quantize(weight):
            self._plain_bytes += TorchMatmul.held_bytes(*weight.shape)
            return QuantizedLinear(weight, bias, Int8Kernel(TorchMatmul))
        if weight.data_ptr() not in self._tables:
            self._plain_bytes += weight.nbytes
        return PlainLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class LaterLinears:
    """Makes layers with the kernels that are fastest beside steps. `floats`: of float weights. `int8`: of weights of a
    file that are quantized again to int8. `int4`, `quantized`: of int4 and int8 weights that the load has quantized.
    Used by one thread.
    """

    floats: KernelChooser
    int8: KernelChooser
    int4: KernelChooser
    quantized: KernelChooser

    def group(self, weights: GroupWeights, bias: torch.Tensor | None) -> Linear:
        """Make a layer of weights that a file holds as int8 or int4. `bias`: [outputs]."""
        return make_group_linear(weights, bias, self.int8)

    def again(self, before: QuantizedGroupLinear) -> Linear:
        """Make a layer of the same weights."""
        chooser = self.int4 if before.bits == 4 else self.quantized
        return chooser.of_groups(before.groups(), before.bias, before.dtype)

    @property
    def products(self) -> tuple[ProductTrial, ...]:
        """As LinearMaker.products, of the layers made so far."""
        return _by_weights((self.floats, self.int8, self.int4, self.quantized))


def _by_weights(choosers: Sequence[KernelChooser], more: Sequence[ProductTrial] = ()) -> tuple[ProductTrial, ...]:
    """Return the kernels of all layers, and `more`, most weights first."""
    found = [*(each for chooser in choosers for each in chooser.products), *more]
    return tuple(sorted(found, key=lambda each: -each.outputs * each.inputs * each.layers))


def _lists(
    bits: Bits | None, usual: Sequence[CpuKernel], name: str, folder: Path, *, defers_compiled: bool
) -> list[Sequence[CpuKernel]]:
    """Return the kernels for the weights; then those for weights that the first do not fit.

    `name`: of the kernel to use, or auto. `defers_compiled`: as of LinearMaker. Raises InvalidModel for a name that is
    not among the first kernels.
    """
    if bits is not None and defers_compiled:
        return [quantizing_kernels(4), quantizing_kernels(8)] if bits == "int4" else [quantizing_kernels(8)]
    found: list[Sequence[CpuKernel]] = [usual] if bits is None else [int8_kernels()]
    if bits == "int4":
        found.insert(0, int4_kernels())
    if name != "auto":
        chosen = [each for each in found[0] if each.name == name]
        if not chosen:
            names = ", ".join(f'"{each.name}"' for each in found[0]) or "none"
            raise InvalidModel(
                f'{folder}: kernels: expected "auto" or a kernel of this dtype on this CPU ({names}), got "{name}"; '
                "choose one of them"
            )
        found.insert(0, chosen)
    return found


def linear_weights(model: Any) -> list[torch.Tensor]:
    """Return the weights of all linear layers, [outputs, inputs]."""
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    return [module.weight for module in linears]


def linear_inputs(model: Any) -> set[int]:
    """Return the numbers of inputs that linear layers have."""
    modules = list(model.modules())
    found = {module.in_features for module in modules if isinstance(module, torch.nn.Linear)}
    return found | {module.nx for module in modules if isinstance(module, Conv1D)}
