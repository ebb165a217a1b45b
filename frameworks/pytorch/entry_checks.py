"""Refuse folders that are not served, and keys of an entry that do not apply to the model of its folder."""

from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.generation.image_text_models import NOT_SERVED
from frameworks.generation.sources import SOURCE_TASKS
from frameworks.pytorch.cpu_layers.packed import PACKINGS
from frameworks.pytorch.encoders.loading import ModelFiles
from frameworks.pytorch.loader import DTYPES
from frameworks.tasks.architectures import SERVED
from frameworks.text.config import ENCODER_DECODERS, GENERATES, TextConfig

# Models with encoder and decoder, or with images and text.
_GENERATES_OTHERWISE = "ForConditionalGeneration"

_KEYS_OF_GENERATORS = (
    "kv_cache_bytes", "max_num_batched_tokens", "speculation", "draft_model", "num_speculative_tokens",
    "adapters", "tensor_parallel", "vision", "max_images", "max_image_pixels",
    "max_video_frames", "max_video_seconds",
)  # fmt: skip


_KEYS_OF_LANGUAGE_MODELS = (
    "speculation", "draft_model", "num_speculative_tokens", "adapters", "tensor_parallel", "vision", "max_images",
    "max_image_pixels", "max_video_frames", "max_video_seconds",
)  # fmt: skip
"""Those of generators that a model with an encoder does not have."""
_KEYS_OF_IMAGES = ("max_images", "max_image_pixels")
"""Those of models that embed images and texts alike, too."""


def check_entry_of_task(entry: TorchModelEntry, folder: Path, task: str) -> None:
    """Raise InvalidModel for a key of an entry that applies to other models."""
    fields = TorchModelEntry.model_fields
    keys = (*_KEYS_OF_GENERATORS, "kv_cache_dtype", "score_tokens", "dimensions", "token_ids")
    unsuitable = [key for key in keys if getattr(entry, key) != fields[key].default]
    if unsuitable:
        raise InvalidModel(f"{folder}: {unsuitable[0]}: expected none for a model of task {task}; remove it")
    if entry.dtype is not None and entry.dtype not in DTYPES:
        raise InvalidModel(
            f'{folder}: dtype: expected "f32", "f16" or "bf16" for the task {task}, got "{entry.dtype}"; remove it'
        )
    _check_kernels(entry, folder)


def _check_kernels(entry: TorchModelEntry, folder: Path) -> None:
    """Raise InvalidModel for the kernel of a language model in the entry of another model."""
    known = ("auto",) if entry.dtype == "int8" else (*PACKINGS, "compiled")
    if entry.kernels not in known:
        names = ", ".join(f'"{each}"' for each in known)
        raise InvalidModel(
            f'{folder}: kernels: expected one of {names} for a model that generates no text, got "{entry.kernels}"; '
            "remove it"
        )


def check_kind(files: ModelFiles) -> None:
    folder, config, model_type = files.folder, files.config, files.entry.model_type
    if not config.model_type:
        raise InvalidModel(f"{folder / 'config.json'}: model_type: expected the name of an architecture, got none")
    reason = NOT_SERVED.get(config.architecture)
    if reason is not None:
        raise InvalidModel(f"{folder}: {config.architecture} is not served: {reason}; choose another model")
    is_other = config.architecture.endswith(_GENERATES_OTHERWISE) and not config.reads_messages
    if (config.is_encoder_decoder or is_other) and not config.generates:
        raise InvalidModel(
            f"{folder}: expected an encoder (embed, classify) or a model that generates text, one of "
            f"{', '.join(sorted(ENCODER_DECODERS))} or a causal language model, got "
            f"{config.architecture or config.model_type}"
        )
    _check_encoder_decoder(files)
    generates = config.generates
    # "bert" and "llama" are families; any other model_type must be that of the folder.
    family = "llama" if config.architecture.endswith(GENERATES) else "bert"
    if model_type not in (None, config.model_type, family):
        raise InvalidModel(
            f'{folder}: model_type: expected "{config.model_type}" as in config.json, got "{model_type}"; '
            "make them agree or remove it"
        )
    fields = TorchModelEntry.model_fields
    keys = set(_KEYS_OF_GENERATORS) - (set(_KEYS_OF_IMAGES) if embeds_images(config) else set())
    unsuitable = sorted(key for key in keys if getattr(files.entry, key) != fields[key].default)
    if unsuitable and not generates:
        raise InvalidModel(f"{folder}: {unsuitable[0]}: expected only for models that generate text; remove it")
    if files.entry.kv_cache_dtype != "auto" and not generates:
        raise InvalidModel(f"{folder}: kv_cache_dtype: expected only for models that generate text; remove it")
    if not generates:
        _check_kernels(files.entry, folder)
    if files.entry.dtype == "int4" and not generates:
        raise InvalidModel(
            f'{folder}: dtype: expected "int4" only for models that generate text; set dtype = "int8" or remove it'
        )
    if files.entry.score_tokens is not None and config.answers is None:
        found = config.architecture or config.model_type
        raise InvalidModel(f"{folder}: score_tokens: expected a causal language model, got {found}; remove it")


def _check_encoder_decoder(files: ModelFiles) -> None:
    """Raise InvalidModel for a task of other models, and for a key that a model with an encoder does not have."""
    found = files.config.architecture or files.config.model_type
    if not files.config.has_encoder:
        if files.entry.task in SOURCE_TASKS:
            raise InvalidModel(
                f'{files.folder}: task: expected a model with an encoder and a decoder for "{files.entry.task}", got '
                f"{found}; correct it or remove it"
            )
        return
    fields, entry = TorchModelEntry.model_fields, files.entry
    unsuitable = [key for key in _KEYS_OF_LANGUAGE_MODELS if getattr(entry, key) != fields[key].default]
    if unsuitable:
        raise InvalidModel(f"{files.folder}: {unsuitable[0]}: expected none for {found}; remove it")
    if entry.dtype == "int4":
        raise InvalidModel(
            f'{files.folder}: dtype: expected "f32", "bf16", "f16" or "int8" for a model with an encoder, got "int4"'
        )


def embeds_images(config: TextConfig) -> bool:
    """Whether the model embeds images and texts alike."""
    return config.reads_pages or config.reads_messages


def check_task(files: ModelFiles) -> None:
    """Raise InvalidModel for a class of another task: of tokens, of answers in a text, of choices."""
    if not files.config.has_task:
        raise InvalidModel(
            f"{files.folder}: architectures: expected a class whose task is served, got {files.config.architecture}; "
            f"{SERVED}"
        )


def check_packed(files: ModelFiles) -> None:
    """Raise InvalidModel where packed weights are not served: of an encoder, and with a dtype of another width."""
    if files.packed is None:
        return
    name = files.weights.files[0] if files.packed.gguf is not None else files.folder
    if not files.config.generates:
        found = files.config.architecture or files.config.model_type
        raise InvalidModel(f"{name}: expected a language model that generates text, got {found}; serve its original")
    if files.packed.elements and files.entry.dtype not in (None, *DTYPES):
        raise InvalidModel(
            f'{name}: dtype: expected "f32", "f16" or "bf16", got "{files.entry.dtype}": the weights are quantized '
            "already; remove it"
        )
