"""Load a transformers model from its folder onto a device, and check that no weight is missing."""

import re
from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch

# The modules that every architecture needs. transformers and torch import them, for a second, when the first model is
# built. Here they are part of the framework's import, after which the manager exempts permanent objects from garbage
# collection.
import transformers
import transformers.generation.utils
import transformers.masking_utils
import transformers.modeling_layers
import transformers.modeling_utils
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel, OutOfMemory, without_paths
from frameworks.core.files import read_json
from frameworks.generation.image_text_models import SERVED
from frameworks.pytorch import kernels
from frameworks.pytorch.cpu_layers.packed import packs_linear
from frameworks.pytorch.lean_imports import import_shape_kernels, skip_initialization_without_memory
from frameworks.pytorch.weights import read_weight_files
from frameworks.tasks.architectures import architecture_of

skip_initialization_without_memory()
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8", "int4": "int4"}
# Older files have these buffers, which transformers computes and does not read.
_POSITIONS = r"(^|\.)position_ids$"


def page_in_kernels(device: Device) -> None:
    """Run an encoder layer's operators once, on tiny tensors: the library's code is then in memory before the first
    model, so that an unloaded model leaves nothing behind.
    """
    size, heads = 384, 12
    linear = torch.nn.functional.linear
    with torch.inference_mode(), torch.device(device.id):
        states = torch.nn.functional.embedding(torch.zeros(2, 16, dtype=torch.long), torch.zeros(4, size))
        states = torch.nn.functional.layer_norm(states, (size,), torch.ones(size), torch.zeros(size))
        query = linear(states, torch.zeros(size, size), torch.zeros(size)).view(2, 16, heads, -1).transpose(1, 2)
        mask = torch.zeros(2, 1, 16, 16)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        wide = torch.nn.functional.gelu(linear(states, torch.zeros(4 * size, size), torch.zeros(4 * size)))
        torch.tanh(states + linear(wide, torch.zeros(size, 4 * size)))
    if device.kind == "cpu":
        packs_linear()


def default_dtype(device: Device, file_dtype: str) -> str:
    """Return the fastest dtype of `device`; on a CPU none below the quality of the file (`F32`, `BF16`, …)."""
    if device.kind != "cpu":
        return "bf16" if file_dtype == "BF16" else "f16"
    # bfloat16 is the only narrow type that a CPU can be fast at.
    if file_dtype == "BF16" and kernels.multiplies_bf16():
        return "bf16"
    return "f32"


def load_encoder(
    folder: Path,
    classifies: bool,
    needs_pooler: bool,
    dtype: str,
    device: Device,
    enable_memory_mapping: bool = True,
    is_pickled: bool = False,
) -> torch.nn.Module:
    """Load an encoder, as `load_causal_model`. Without `needs_pooler` it has no pooler, and its weights may be absent.

    `is_pickled`: the weights are in `pytorch_model.bin`, which transformers reads with `weights_only`.

    A decoder is loaded without its head, and its runs keep no keys and values.
    """
    auto = AutoModelForSequenceClassification if classifies else AutoModel
    model, missing = _loaded(auto, folder, dtype, device, enable_memory_mapping, is_pickled)
    config: Any = model.config
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if getattr(config, "attn_logit_softcapping", None) is not None:
        # Gemma 2: torch's attention has no soft cap, and transformers finds that out in the first run.
        model.set_attn_implementation("eager")  # type: ignore[operator]
    _check_nothing_missing(folder, model, [key for key in missing if needs_pooler or "pooler" not in key])
    if not needs_pooler and "add_pooling_layer" in signature(type(model)).parameters:
        # As transformers does without that layer: it is neither computed nor in memory.
        setattr(model, "pooler", None)  # noqa: B010 - the class of any model
    return model


def load_causal_model(folder: Path, dtype: str, device: Device, enable_memory_mapping: bool = True) -> torch.nn.Module:
    """Load a language model in eval mode onto `device`.

    With `enable_memory_mapping` weights that need no conversion stay in their files on a CPU: the kernel reads the
    pages that are used, and drops them where memory is short. Without it the files are read into memory.
    `trust_remote_code` is never set. Raises OutOfMemory, and InvalidModel if transformers cannot build the model, or if
    weights are missing, which transformers would fill at random.
    """
    architecture = architecture_of(folder)
    # AutoModelForCausalLM knows few of those that see, and not their vision.
    auto = getattr(transformers, architecture) if architecture in SERVED else AutoModelForCausalLM
    model, missing = _loaded(auto, folder, dtype, device, enable_memory_mapping)
    _check_nothing_missing(folder, model, missing)
    return model


def load_model_of(
    architecture: type, folder: Path, dtype: str, device: Device, enable_memory_mapping: bool = True
) -> torch.nn.Module:
    """Load a model of a class of transformers, as `load_causal_model`."""
    model, missing = _loaded(architecture, folder, dtype, device, enable_memory_mapping)
    _check_nothing_missing(folder, model, missing)
    return model


def load_vision_model(
    folder: Path, classifies: bool, projects: bool, dtype: str, device: Device, enable_memory_mapping: bool = True
) -> tuple[torch.nn.Module, bool]:
    """Load a model of images, as `load_causal_model`; return it, and whether its weights lack those of its pooler.

    `projects`: CLIP's tower of images with the projection into the space that it shares with texts.
    """
    auto: type = AutoModel
    if classifies:
        auto = AutoModelForImageClassification
    elif projects:
        # Few models need it.
        from transformers import CLIPVisionModelWithProjection

        auto = CLIPVisionModelWithProjection
    model, missing = _loaded(auto, folder, dtype, device, enable_memory_mapping)
    poolers = [key for key in missing if "pooler" in key and not classifies]
    _check_nothing_missing(folder, model, [key for key in missing if key not in poolers])
    return model, bool(poolers)


def _loaded(
    auto: type, folder: Path, dtype: str, device: Device, enable_memory_mapping: bool, is_pickled: bool = False
) -> tuple[torch.nn.Module, list[str]]:
    """Return the model, and the names of the missing weights."""
    _check_config(folder / "config.json")
    try:
        model, info = _from_pretrained(auto, folder, dtype, enable_memory_mapping, is_pickled)
        mismatched = info.get("mismatched_keys")
        if mismatched:
            raise InvalidModel(
                f"{folder}: expected weights of the shapes in config.json, got other shapes for "
                f"{sorted(map(str, mismatched))[:5]}"
            )
        _check_dtypes(folder, model, info["unexpected_keys"], is_pickled)
        return model.eval().requires_grad_(False).to(device.id), list(info["missing_keys"])
    except torch.OutOfMemoryError as error:
        what = f"the weights do not fit on {device.id}"
        raise OutOfMemory(f"{folder}: {what}: {error}", f"{what}: {without_paths(str(error))}") from error
    except InvalidModel:
        raise
    except Exception as error:
        # transformers raises many types on broken folders; all of them mean that the folder cannot be served.
        raise InvalidModel(
            f"{folder}: transformers cannot load it: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _check_dtypes(folder: Path, model: Any, unexpected: Iterable[str], is_pickled: bool) -> None:
    """Raise InvalidModel for a weight that is not stored as floating point: transformers would cast it.

    `unexpected`: tensors of the files that the model does not read. Tables of integers and quantized weights have
    such dtypes.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        return
    own = [*model.named_parameters(), *model.named_buffers()]
    integers = [name for name, tensor in own if not tensor.is_floating_point()]
    # A file may have the tensor below another path, but not with another last part of its name.
    parts = {name.rpartition(".")[2] for name in integers} - {"weight", "bias"}
    allowed = [*unexpected, *integers]
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), _POSITIONS]
    for name, (file, dtype) in read_weight_files(folder, is_pickled).others.items():
        is_allowed = name.rpartition(".")[2] in parts or any(_is_same(name, each) for each in allowed)
        if not (is_allowed or any(re.search(each, name) for each in patterns)):
            raise InvalidModel(
                f"{file}: {name}: expected a weight of floating point (F32, F16, BF16), got {dtype}; save the weights "
                "as floating point"
            )


def _is_same(name: str, other: str) -> bool:
    """Whether both are the name of one tensor: the prefix of a model within another one may be absent."""
    return name == other or name.endswith(f".{other}") or other.endswith(f".{name}")


def _check_nothing_missing(folder: Path, model: torch.nn.Module, missing: list[str]) -> None:
    if missing:
        raise InvalidModel(
            f"{folder}: missing weights of {type(model).__name__}: {', '.join(sorted(missing)[:5])}"
            f"{' …' if len(missing) > 5 else ''}; check architectures in config.json"
        )


def _check_config(file: Path) -> None:
    config = read_json(file)
    if config.get("transformers_weights"):
        raise InvalidModel(
            f"{file}: transformers_weights: expected none, as it may name a pickle; "
            "name the file model.safetensors and remove the key"
        )
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise InvalidModel(
            f"{file}: model_type: expected an architecture of transformers, "
            f'got "{config.get("model_type")}", which needs code of the folder (auto_map); such code is never run'
        )


def _from_pretrained(
    auto: type, folder: Path, dtype: str, enable_memory_mapping: bool, is_pickled: bool
) -> tuple[torch.nn.Module, dict[str, list[str]]]:
    options: dict[str, object] = {
        "dtype": DTYPES[dtype],
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": not is_pickled,
        "weights_only": True,
        "ignore_mismatched_sizes": True,  # the loading info lists them
        "output_loading_info": True,
    }
    if not enable_memory_mapping:
        options["disable_mmap"] = True
    try:
        result = _built(auto, folder, {**options, "attn_implementation": "sdpa"})
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error) and "sdpa" not in str(error):
            raise
        result = _built(auto, folder, options)
    model, info = result
    return model, info


def _built(auto: Any, folder: Path, options: Mapping[str, object]) -> Any:
    """Build the model, and once more if an operation of its construction needs a kernel that was left out."""
    try:
        return auto.from_pretrained(str(folder), **options)
    except NotImplementedError:
        if not import_shape_kernels():
            raise
        return auto.from_pretrained(str(folder), **options)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
