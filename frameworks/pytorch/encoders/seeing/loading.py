"""Load models that embed texts and images alike from their folders."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.generation.types import VisionSpec
from frameworks.images.spec import ImageSpec
from frameworks.pytorch.encoders.encoder import pool_by
from frameworks.pytorch.encoders.kernels import choose_kernels
from frameworks.pytorch.encoders.loading import EncoderLoading, ModelFiles
from frameworks.pytorch.encoders.seeing.conversations import ConversationPrompts
from frameworks.pytorch.encoders.seeing.items import ContentTokenizer
from frameworks.pytorch.encoders.seeing.model import JoinTrial, Rows, SeeingModel
from frameworks.pytorch.encoders.seeing.pages import PagePrompts
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.vision.processing import ImageProcessing
from frameworks.pytorch.generation.vision.prompts import ImagePrompts
from frameworks.pytorch.loader import DTYPE_NAMES, load_encoder, load_model_of
from frameworks.pytorch.quantize import held_bytes
from frameworks.text.sentence_modules.vector_modules import VectorModules
from frameworks.types import Array, ModelSpec, TensorType, TextSpec, ValueSpec


def load_seeing_models(files: ModelFiles, loading: EncoderLoading) -> list[SeeingModel]:
    """Load as many instances as the entry says, on one set of weights. Raises InvalidModel, OutOfMemory."""
    entry = files.entry
    bounds = VisionSpec(entry.max_images, entry.max_image_pixels, no_videos_because="it embeds texts and images")
    prompts: PagePrompts | ConversationPrompts
    rows: Rows
    if files.config.reads_pages:
        prompts = PagePrompts(files.folder, files.config, bounds)
        architecture = getattr(transformers, files.config.architecture)
        dtype, device = loading.dtype, loading.device
        model = load_model_of(architecture, files.folder, dtype, device, loading.enable_memory_mapping)
        rows, size = _token_vectors, _size_of(model.config, "embedding_dim")
    else:
        model = _decoder(files, loading)
        prompts = _conversations(files, model, bounds)
        rows, size = _pooled_by(files, model)
    _keep_no_cache(model.config)
    choose_kernels(model, entry, loading.device)
    spec = _spec(files, loading, model, size, bounds)
    trial = JoinTrial()
    # A run does not change the module: one is enough for any number of threads.
    return [SeeingModel(model, spec, prompts, rows, trial, loading.intra_op_threads) for _ in range(entry.instances)]


def _decoder(files: ModelFiles, loading: EncoderLoading) -> torch.nn.Module:
    """Load the language model that sees, without its head. Raises InvalidModel, OutOfMemory."""
    if files.config.token_modules:
        raise InvalidModel(
            f"{files.folder}: {files.config.token_modules[0].kind}: expected Pooling after the Transformer of a model "
            "that sees; this order is not served"
        )
    return load_encoder(files.folder, False, True, loading.dtype, loading.device, loading.enable_memory_mapping)


def _conversations(files: ModelFiles, model: torch.nn.Module, bounds: VisionSpec) -> ConversationPrompts:
    folder = files.folder
    try:
        processing = ImageProcessing(folder, model, _image_settings(folder))
    except InvalidModel as error:
        raise InvalidModel(f"{folder}: {error.message}") from error
    vocabulary_size = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    renderer = HuggingFaceTokenizer(folder, vocabulary_size)
    tokenizer = ContentTokenizer(folder, files.config)
    try:
        return ConversationPrompts(ImagePrompts(processing, renderer, bounds), renderer, tokenizer, files.config)
    except InvalidModel as error:
        raise InvalidModel(f"{folder}: {error.message}") from error


def _image_settings(folder: Path) -> dict[str, Any]:
    """Return what sentence-transformers changes of the processor of images."""
    stated = read_json(folder / "sentence_bert_config.json").get("processing_kwargs")
    settings = stated.get("image") if isinstance(stated, dict) else None
    return settings if isinstance(settings, dict) else {}


def _pooled_by(files: ModelFiles, model: torch.nn.Module) -> tuple[Rows, int]:
    """Return what makes rows of the last states, and the size of a row. Raises InvalidModel."""
    assert files.config.pooling is not None
    modes = files.config.pooling.split("+")
    config: Any = model.config
    size = _size_of(config.get_text_config(decoder=True), "hidden_size") * len(modes)
    modules = None
    if files.config.vector_modules:
        modules = VectorModules(files.config.vector_modules, size, files.entry.allow_pickled_weights)
        size = modules.size
    return partial(_pooled, modes=modes, modules=modules), size


def _token_vectors(model: torch.nn.Module, inputs: Any) -> Array:
    rows: Array = model(**inputs).embeddings.float().cpu().numpy()
    return rows


def _pooled(model: torch.nn.Module, inputs: Any, modes: list[str], modules: VectorModules | None) -> Array:
    states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"]
    rows: Array = torch.cat([pool_by(mode, states, mask).float() for mode in modes], dim=1).cpu().numpy()
    return rows if modules is None else modules(rows)


def _size_of(config: Any, name: str) -> int:
    return int(getattr(config, name))


def _keep_no_cache(config: Any) -> None:
    """Let runs keep no keys and values, in the config of the model and those within it."""
    for each in (config, *(getattr(config, name, None) for name in ("vlm_config", "text_config"))):
        if each is not None and hasattr(each, "use_cache"):
            each.use_cache = False
        if each is not None and each is not config:
            _keep_no_cache(each)


def _spec(
    files: ModelFiles, loading: EncoderLoading, model: torch.nn.Module, size: int, bounds: VisionSpec
) -> ModelSpec:
    config = files.config
    reads_pages = config.reads_pages
    name, shape = ("multi_embeddings", (-1, -1, size)) if reads_pages else ("embeddings", (-1, size))
    return ModelSpec(
        framework="pytorch",
        task="embed",
        inputs=(ValueSpec("text", TensorType("string", (-1,)), required=False),),
        outputs=(ValueSpec(name, TensorType("float32", shape)),),
        device=loading.device.id,
        dtype=DTYPE_NAMES[loading.dtype],
        memory_bytes=held_bytes(model),
        text=TextSpec(
            max_tokens=config.max_tokens,
            normalize=True if reads_pages else config.normalize,
            embedding_size=size,
            shorter_sizes=() if reads_pages else tuple(each for each in config.shorter_sizes if each < size),
            pooling="none" if reads_pages else str(config.pooling),
            prompts={} if reads_pages else config.prompts,
            vectors="multi" if reads_pages else "dense",
            are_queries=reads_pages,
        ),
        image=ImageSpec("", 0, 0, normalize=config.normalize, embedding_size=size, output_name=name),
        messages=None if reads_pages else bounds,
    )
