"""Find the compiled code that a model needs, and whether its load waits for it.

A model is served with torch's kernels until its code has been compiled, see kernel_switch. A named kernel is waited
for: it serves from the start.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import structlog
import torch

from frameworks.core.progress import phase
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.compiled.matmul.float_linears import compiles
from frameworks.pytorch.compiling.background import CompilationFailed, compile_parts
from frameworks.pytorch.compiling.parts import STEP, adapters_of, missing_parts
from frameworks.pytorch.generation.decoders.llama import MODEL_TYPES, is_llama
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.weights.compiled_linears import GROUP
from frameworks.pytorch.generation.weights.cpu_kernels import COMPILED_FLOAT16, float16_is_exact, float_format
from frameworks.pytorch.generation.weights.group_linear import code_of_groups
from frameworks.pytorch.generation.weights.linear_makers import Bits, linear_inputs, linear_weights
from frameworks.pytorch.generation.weights.packed.building import packed_modules
from frameworks.pytorch.generation.weights.packed.modules import PackedModule
from frameworks.pytorch.loader import DTYPES

log = structlog.get_logger(__name__)

_ELEMENTS = 1 << 16
_QUANTIZED: dict[Bits, tuple[str, ...]] = {"int8": ("int8_groups",), "int4": ("int4", "int8_groups")}


class CodeNeeds:
    """The code of one load. Used by one thread."""

    def __init__(self, load: GeneratorLoad) -> None:
        """Begin to compile the code that the load waits for, beside it."""
        self._load = load
        self._compiles = load.device.kind == "cpu" and lanes() > 0
        self._futures: list[Future[None]] = []
        known = self._known_parts() if self._compiles else set()
        if known:
            self._begin({*known, *_step_of(load)})

    def wait_or_defer(self, model: Any) -> "Future[None] | None":
        """Wait for the code of a model that needs it; return the future of the code of one that is served without it.

        None: all code can be read from the cache, or none is needed.
        """
        if not self._compiles:
            return None
        packed, bits = packed_modules(model), self._load.bits
        plain = self._parts_of_floats(model) if linear_weights(model) else _step_of(self._load)
        parts = {*_parts_of_packed(packed), *plain}
        if bits is not None:
            if not compiles("int8"):
                return None
            parts |= _parts_of_quantized(bits, model)
        if self._load.entry.kernels == "auto":
            if not missing_parts(parts):
                return None
            return compile_parts({*parts, *self._parts_of_adapters(model)}, self._load.entry.name)
        if packed:
            self._begin(parts)
        self._wait()
        return None

    def wait_for(self, model: Any) -> None:
        """Wait for the code of the layers of a model whose kernels do not change later."""
        if not self._compiles or not linear_weights(model):
            return
        parts = self._parts_of_floats(model)
        if self._load.bits is not None:
            parts |= _parts_of_quantized(self._load.bits, model) if compiles("int8") else set()
        self._begin(parts)
        self._wait()

    def wait(self, modules: Sequence[PackedModule]) -> None:
        """Wait for the code of packed layers whose kernels do not change later."""
        if self._compiles and modules:
            self._begin(_parts_of_packed(modules))
            self._wait()

    def _wait(self) -> None:
        if self._futures:
            phase("waits for its kernels")
        for future in self._futures:
            try:
                future.result()
            except CompilationFailed as error:
                log.warning("the load compiles its kernels itself", model=self._load.entry.name, reason=str(error))
        self._futures = []

    def _begin(self, parts: set[str]) -> None:
        future = compile_parts(parts, self._load.entry.name)
        if future is not None:
            log.info("the load waits for its kernels to be compiled", model=self._load.entry.name)
            self._futures.append(future)

    def _known_parts(self) -> set[str]:
        bits, kernels = self._load.bits, self._load.entry.kernels
        if bits is not None and kernels == "compiled":
            return set(_QUANTIZED[bits]) if compiles("int8") else set()
        if kernels == COMPILED_FLOAT16.name:
            return {"float16"}
        return {float_format(DTYPES[self._load.dtype])} if kernels == "compiled" else set()

    def _parts_of_floats(self, model: Any) -> set[str]:
        parts: set[str] = {float_format(model.dtype)}
        if model.dtype == torch.float32 and any(_may_be_half(each) for each in linear_weights(model)):
            parts.add("float16")
        if is_llama(model):
            parts.add(STEP)
        return parts

    def _parts_of_adapters(self, model: Any) -> set[str]:
        has_any = self._load.entry.adapters and is_llama(model)
        return {adapters_of(str(model.dtype).removeprefix("torch."))} if has_any else set()


def _may_be_half(weight: torch.Tensor) -> bool:
    """Whether float16 represents the first weights, float32 [outputs, inputs]; the kernel's own check reads all."""
    return float16_is_exact(weight[: max(1, _ELEMENTS // weight.shape[1])])


def _parts_of_quantized(bits: Bits, model: Any) -> set[str]:
    """Return the formats of weights that the load quantizes; those of the original are timed beside them."""
    has_odd = any(inputs % GROUP for inputs in linear_inputs(model))
    return {*_QUANTIZED[bits], *(("int8",) if has_odd else ())}


def _step_of(load: GeneratorLoad) -> set[str]:
    """Return the step, for a model that may have it."""
    config = json.loads((load.folder / "config.json").read_text(encoding="utf-8"))
    return {STEP} if config.get("model_type") in MODEL_TYPES else set()


def _parts_of_packed(modules: Sequence[PackedModule]) -> set[str]:
    """Return the formats that this CPU can have of layers whose file has them packed."""
    found: set[str] = set()
    for each in modules:
        found |= code_of_groups(each.packed.read(slice(0, 1)))
    return found
