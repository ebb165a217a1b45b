"""Build a language model of transformers around quantized weights of a file or folder."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel, OutOfMemory, without_paths
from frameworks.generation.image_text_models import SERVED
from frameworks.pytorch import device_kernels
from frameworks.pytorch.generation.weights.packed.modules import PackedEmbedding, PackedModule
from frameworks.pytorch.generation.weights.packed.weight import PackedWeight, WeightSource, dense
from frameworks.pytorch.lean_imports import import_shape_kernels
from frameworks.pytorch.loader import DTYPES
from frameworks.tasks.architectures import architecture_of

_WEIGHT = ".weight"


def build_causal_model(folder: Path, source: WeightSource, dtype: str, device: Device) -> Any:
    """Build the model of a folder's config.json with the weights of `source`, in eval mode on `device`.

    On a CPU, and on a device with kernels for them, packed weights of linear layers stay packed; float8 on a device
    alone. Others are dequantized to `dtype`, one after the other.
    Raises InvalidModel for missing weights and wrong shapes, OutOfMemory.
    """
    try:
        model = _without_memory(folder, dtype)
        source.bind(model)
        builder = _Builder(model, source, DTYPES[dtype], torch.device(device.id))
        builder.fill()
        source.adjust(model)
        return model.eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        what = f"the weights do not fit on {device.id}"
        raise OutOfMemory(f"{source.name}: {what}: {error}", f"{what}: {without_paths(str(error))}") from error
    except InvalidModel:
        raise
    except Exception as error:
        # transformers raises many types on unsuitable configurations.
        reason = str(error).strip().partition("\n")[0][:300]
        raise InvalidModel(f"{source.name}: cannot be loaded: {type(error).__name__}: {reason}") from error


def _without_memory(folder: Path, dtype: str) -> Any:
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config

    architecture = architecture_of(folder)

    def made() -> Any:
        with torch.device("meta"):
            if architecture in SERVED:
                # AutoModelForCausalLM knows few of those that see, and not their vision.
                return getattr(transformers, architecture)._from_config(config, dtype=DTYPES[dtype])
            return transformers.AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=False
            )

    try:
        return made()
    except NotImplementedError:
        if not import_shape_kernels():
            raise
        return made()


class _Builder:
    def __init__(self, model: Any, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._source = source
        self._dtype = dtype
        self._device = device
        self._has_kernels = device_kernels.are_available(device)
        head = model.get_output_embeddings()
        heads = [f"{path}{_WEIGHT}" for path, module in model.named_modules() if module is head]
        self._is_tied = bool(heads) and heads[0] in model.all_tied_weights_keys

    def fill(self) -> None:
        """Give every parameter and buffer its value."""
        missing = list(self._fill_modules())
        if missing:
            raise InvalidModel(
                f"{self._source.name}: missing weights of {type(self._model).__name__}: {', '.join(missing[:5])}"
                f"{' …' if len(missing) > 5 else ''}; is it a whole model?"
            )
        self._fill_buffers()

    def _fill_modules(self) -> Iterator[str]:
        """Fill all modules; yield the names of the parameters without a value."""
        head = self._model.get_output_embeddings()
        for path, module in list(self._model.named_modules()):
            if module is head and self._is_tied:
                continue
            packed = self._packed(f"{path}{_WEIGHT}", module)
            if packed is not None:
                self._put(path, module, packed)
                continue
            for name, parameter in list(module.named_parameters(recurse=False)):
                whole_name = f"{path}.{name}" if path else name
                value = self._value(whole_name, parameter.shape)
                if value is None:
                    yield whole_name
                else:
                    filled = torch.nn.Parameter(value, requires_grad=False)
                    filled._is_hf_initialized = True  # type: ignore[attr-defined]  # so that transformers keeps it
                    module.register_parameter(name, filled)
        if self._is_tied:
            self._tie(head)

    def _packed(self, name: str, module: torch.nn.Module) -> PackedWeight | None:
        """Return the packed weight of a module that can hold one on this device."""
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            return None
        # Rows of a packed table are read by the CPU.
        if self._device.type != "cpu" and not (isinstance(module, torch.nn.Linear) and self._has_kernels):
            return None
        packed = self._source.packed(name)
        if packed is not None:
            self._check(name, (packed.outputs, packed.inputs), module.weight.shape)
            if packed.is_float and self._device.type == "cpu":
                return None
        return packed

    def _put(self, path: str, module: torch.nn.Module, packed: PackedWeight) -> None:
        if isinstance(module, torch.nn.Embedding):
            self._model.set_submodule(path, PackedEmbedding(packed, self._dtype, self._device))
            return
        name = f"{path}.bias"
        bias = self._value(name, (packed.outputs,)) if getattr(module, "bias", None) is not None else None
        if bias is None and getattr(module, "bias", None) is not None:
            raise InvalidModel(f"{self._source.name}: {name}: expected {packed.outputs} values, got none")
        self._model.set_submodule(path, PackedModule(packed, bias, self._device))

    def _value(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return a parameter on the device in the dtype of the model."""
        plain = self._source.plain(name)
        if plain is not None:
            self._check(name, plain.shape, shape)
            return plain.to(self._device, self._dtype)
        packed = self._source.packed(name)
        if packed is None:
            return None
        self._check(name, (packed.outputs, packed.inputs), shape)
        return dense(packed, self._dtype, self._device)

    def _check(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if tuple(found) != tuple(expected):
            raise InvalidModel(
                f"{self._source.name}: {name}: expected the shape {list(expected)} of config.json, got {list(found)}"
            )

    def _tie(self, head: Any) -> None:
        table = self._model.get_input_embeddings()
        if isinstance(table, PackedEmbedding):
            path = next(path for path, module in self._model.named_modules() if module is head)
            self._model.set_submodule(path, PackedModule(table.packed, None, self._device))
        else:
            head.weight = table.weight

    def _fill_buffers(self) -> None:
        """Compute the buffers that no file holds, as transformers does after a load."""
        owners = {path: each for path, each in self._model.named_modules() if isinstance(each, PreTrainedModel)}
        for path, module in self._model.named_modules():
            missing = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
            for name in missing:
                module._buffers[name] = torch.empty_like(module._buffers[name], device=self._device)
            if missing:
                # Each model within the model knows its own modules.
                owner = max((each for each in owners if _is_within(path, each)), key=len)
                owners[owner]._init_weights(module)


def _is_within(path: str, ancestor: str) -> bool:
    return not ancestor or path == ancestor or path.startswith(f"{ancestor}.")


def packed_modules(model: torch.nn.Module) -> list[PackedModule]:
    """Return the layers of a model whose weights are packed."""
    return [module for module in model.modules() if isinstance(module, PackedModule)]


def packed_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the embedding tables that are made of packed weights."""
    return sum(module.held_bytes for module in model.modules() if isinstance(module, PackedEmbedding))


def packed_dtype(model: torch.nn.Module) -> str | None:
    """Return the dtype of most weights in packed layers: int4, int8 or float8; None where none is packed."""
    counts: Counter[str] = Counter()
    for module in packed_modules(model):
        counts[f"{'float' if module.packed.is_float else 'int'}{module.packed.bits}"] += (
            module.packed.outputs * module.packed.inputs
        )
    return counts.most_common(1)[0][0] if counts else None


def use_fast_layers(model: torch.nn.Module) -> int:
    """Let a model of transformers compute with our layers of packed weights; return about how many bytes they take."""
    return make_fast(packed_modules(model))


def make_fast(modules: Sequence[PackedModule]) -> int:
    """As `use_fast_layers`, for some modules of a model."""
    for module in modules:
        module.make_fast()
    return sum(module.packed.held_bytes for module in modules)
