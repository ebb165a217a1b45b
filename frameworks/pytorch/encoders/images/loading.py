"""Load vision models from a folder: classifiers, embeddings, and CLIP and SigLIP with their text towers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.images.processor import ImageProcessor
from frameworks.images.reference import ReferenceProcessor
from frameworks.images.spec import ImageSpec
from frameworks.pytorch.device.graphs import graphs_of
from frameworks.pytorch.device.queue import StreamQueue
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.encoders.images.encoder import PIXELS, ImageModel, TextTower, pooled
from frameworks.pytorch.encoders.images.families import POOLINGS
from frameworks.pytorch.encoders.images.folders import ImageFolder
from frameworks.pytorch.encoders.images.graphs import ImageGraphs, Rows
from frameworks.pytorch.encoders.kernels import choose_kernels
from frameworks.pytorch.encoders.loading import EncoderLoading, ModelFiles
from frameworks.pytorch.loader import DTYPE_NAMES, load_vision_model
from frameworks.pytorch.quantize import held_bytes, quantize_encoder
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.texts import text_batches
from frameworks.quantization.warm_up_images import black_pixels, warm_up_pixels
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Batch, ModelSpec, TensorBatch, TensorType, TextSpec, ValueSpec

_LOGITS, _EMBEDDINGS = "logits", "embeddings"
_SIGLIP = "siglip"
_IMAGES_PER_BATCH = 2

Run = Callable[..., torch.Tensor]
"""From the inputs of a model, by name, to one row for each image."""


def load_image_models(
    files: ModelFiles, images: ImageFolder, loading: EncoderLoading, copies: QuantizedCopies | None
) -> list[ImageModel]:
    """Load as many instances as the entry says, on one set of weights. `copies`: cache of int8 reports; None: the model
    is not quantized.

    Raises InvalidModel, OutOfMemory.
    """
    processor = images.processor()
    model, lacks_pooler = load_vision_model(
        files.folder,
        images.kind == "classify",
        images.architecture.endswith("VisionModelWithProjection"),
        loading.dtype,
        loading.device,
        loading.enable_memory_mapping,
    )
    _arrange_convolutions(model)
    if copies is None:
        choose_kernels(model, files.entry, loading.device)
    rows = _unpacked(model, _rows_of(model, images, lacks_pooler), processor)
    texts = _text_tower(files, model) if images.kind == "two towers" else None
    spec = _spec(files, images, model, processor, loading, rows)
    if texts is not None:
        spec = _with_texts(spec, files, texts, _positions(model))
    if copies is not None:
        _check_linear(model, files.folder)
        image_model = ImageModel(model, spec, processor, rows, loading.intra_op_threads, texts)
        report = quantize_encoder(
            model, image_model, partial(_batches, processor, texts), files.entry, files.weights, copies
        )
        spec = replace(spec, dtype="int8", quantization=report, memory_bytes=held_bytes(model))
    # A run does not change the module: one is enough for any number of threads.
    found = [
        ImageModel(model, spec, processor, rows, loading.intra_op_threads, texts, loading.pool)
        for _ in range(files.entry.instances)
    ]
    device = torch.device(loading.device.id)
    if (graphs := graphs_of(device)) is not None:
        shared = ImageGraphs(device, StreamQueue(device), graphs, loading.max_batch_size)
        for each in found:
            each.graphs = shared
    return found


def _rows_of(model: Any, images: ImageFolder, lacks_pooler: bool) -> Run:
    """Return the function from the inputs of a run to one row for each image."""
    if images.kind == "classify":
        return lambda **inputs: _logits(model(**inputs))
    if images.kind == "two towers":
        return lambda **inputs: pooled(model.get_image_features(**inputs))
    pooling = "cls" if lacks_pooler else POOLINGS.get(images.model_type)
    if pooling == "cls":
        return lambda **inputs: model(**inputs).last_hidden_state[:, 0]
    if pooling == "mean":
        return lambda **inputs: model(**inputs).last_hidden_state.mean(1)
    if pooling == "area":
        return lambda **inputs: model(**inputs).last_hidden_state.flatten(2).mean(2)
    return lambda **inputs: _embedding(model(**inputs))


def _unpacked(model: torch.nn.Module, run: Run, processor: ImageProcessor) -> Rows:
    """Return the function from prepared images to rows. Images of several tensors are unpacked before the run."""
    dtype = next(model.parameters()).dtype
    parts = processor.parts if isinstance(processor, ReferenceProcessor) else ()
    if not parts:
        return lambda pixels: run(pixel_values=pixels.to(dtype))
    ends = list(accumulate(prod(part.shape) for part in parts))

    def rows(pixels: torch.Tensor) -> torch.Tensor:
        flat = pixels.flatten(1)
        inputs = {}
        for part, start, end in zip(parts, (0, *ends), ends, strict=False):
            tensor = flat[:, start:end].reshape(-1, *part.shape)
            inputs[part.name] = tensor.to(torch.int64 if part.is_integer else dtype)
        return run(**inputs)

    return rows


def _arrange_convolutions(model: torch.nn.Module) -> None:
    """Put the channels of convolutions last in memory. ResNet-50 then takes about two thirds of the time on a CPU.

    Models without batch normalisation are mostly linear layers, and gain nothing.
    """
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _check_linear(model: torch.nn.Module, folder: Path) -> None:
    """Raise InvalidModel for a model whose convolutions, which stay as they are, have most of the weights."""
    held = {
        kind: sum(each.weight.numel() for each in model.modules() if isinstance(each, kind))
        for kind in (torch.nn.Conv2d, torch.nn.Linear)
    }
    if held[torch.nn.Conv2d] > held[torch.nn.Linear]:
        raise InvalidModel(
            f'{folder}: dtype: expected a model of Linear layers for "int8", got one with most of its weights in '
            "convolutions; remove it"
        )


def _batches(processor: ImageProcessor, texts: TextTower | None) -> list[Batch]:
    """Return images, and texts for a tower of texts, for the comparison with the original."""
    pixels = warm_up_pixels(processor)
    batches: list[Batch] = [
        TensorBatch({PIXELS: pixels[start : start + _IMAGES_PER_BATCH]})
        for start in range(0, len(pixels), _IMAGES_PER_BATCH)
    ]
    return batches if texts is None else [*batches, *text_batches(texts.tokenizer.tokenize)]


def _logits(output: Any) -> torch.Tensor:
    """Return the logits. PP-LCNet has them under another name, so that transformers' pipeline does not run it."""
    logits: torch.Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return logits


def _embedding(output: Any) -> torch.Tensor:
    projected = getattr(output, "image_embeds", None)
    return pooled(output if projected is None else projected)


def _spec(
    files: ModelFiles,
    images: ImageFolder,
    model: torch.nn.Module,
    processor: ImageProcessor,
    loading: EncoderLoading,
    rows: Rows,
) -> ModelSpec:
    classifies = images.kind == "classify"
    config: Any = model.config
    labels = tuple(str(config.id2label[number]) for number in range(config.num_labels)) if classifies else ()
    name = _LOGITS if classifies else _EMBEDDINGS
    is_multi = getattr(config, "problem_type", None) == "multi_label_classification" or len(labels) == 1
    size = len(labels) if classifies else _embedding_size(model, images, processor, rows)
    return ModelSpec(
        framework="pytorch",
        task="classify" if classifies else "embed",
        inputs=(ValueSpec(PIXELS, TensorType("float32", (-1, *processor.empty(0).shape[1:]))),),
        outputs=(ValueSpec(name, TensorType("float32", (-1, size))),),
        device=loading.device.id,
        dtype=DTYPE_NAMES[loading.dtype],
        memory_bytes=held_bytes(model),
        image=ImageSpec(
            PIXELS,
            processor.height,
            processor.width,
            labels,
            is_multi,
            files.config.normalize,
            None if classifies else size,
            output_name=name,
        ),
        batched_inputs=frozenset({PIXELS}),
    )


def _embedding_size(model: torch.nn.Module, images: ImageFolder, processor: ImageProcessor, rows: Rows) -> int:
    """Return the size of an embedding, by a run: the configs of the families name it differently."""
    pixels = torch.from_numpy(black_pixels(processor, 1)).to(next(model.parameters()).device)
    try:
        with torch.inference_mode():
            return int(rows(pixels).shape[1])
    except RUN_ERRORS as error:
        raise InvalidModel(f"{images.folder}: the model does not run on images: {error}") from error


def _positions(model: Any) -> int:
    return int(model.config.text_config.max_position_embeddings)


def _text_tower(files: ModelFiles, model: Any) -> TextTower | None:
    """Return the texts of a model; None where it has no tokenizer, so that only its images are served."""
    if not (files.folder / "tokenizer.json").is_file():
        return None
    most = min(files.config.max_tokens, _positions(model))
    tokenizer = TextTokenizer(files.folder, replace(files.config, max_tokens=most))
    pad_token_id = _pad_token_id(files.folder, tokenizer, model)
    is_siglip = model.config.model_type == _SIGLIP
    return TextTower(tokenizer, pad_token_id, _positions(model) if is_siglip else 0, reads_mask=not is_siglip)


def _pad_token_id(folder: Path, tokenizer: TextTokenizer, model: Any) -> int:
    """Return the padding of the tokenizer, else that of the model: SigLIP reads padding as it was trained with it."""
    named = read_json(folder / "tokenizer_config.json").get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    own = tokenizer.id_of(named) if isinstance(named, str) else None
    if own is None:
        own = model.config.text_config.pad_token_id
    return own if isinstance(own, int) and own >= 0 else 0


def _with_texts(spec: ModelSpec, files: ModelFiles, texts: TextTower, positions: int) -> ModelSpec:
    """Return the spec of a model that reads texts too."""
    assert spec.image is not None
    text = TextSpec(
        max_tokens=min(files.config.max_tokens, positions),
        normalize=files.config.normalize,
        embedding_size=spec.image.embedding_size,
        pooling="pooler",
        prompts=files.config.prompts,
    )
    return replace(
        spec, inputs=(*spec.inputs, ValueSpec("text", TensorType("string", (-1,)), required=False)), text=text
    )
