"""Load a model with an encoder and a decoder, and check its logits against transformers' own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.core.progress import phase
from frameworks.generation.generation_config import source_settings
from frameworks.generation.sources import SourceSpec, source_task
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.encoder_decoder.attention import DecoderAttention
from frameworks.pytorch.generation.encoder_decoder.decoder import EncoderDecoder, NotBatched, biases_of
from frameworks.pytorch.generation.encoder_decoder.runner import EncoderDecoderRunner
from frameworks.pytorch.generation.encoder_decoder.shape import EncoderDecoderShape, read_encoder_decoder_shape
from frameworks.pytorch.generation.encoder_decoder.trial import EncoderDecoderTrial, source_prompts
from frameworks.pytorch.generation.loading.code_needs import CodeNeeds
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel, ServedSpeech
from frameworks.pytorch.generation.step.quantization_report import MIN_COSINE
from frameworks.pytorch.generation.weights.kernel_choice import log_trials
from frameworks.pytorch.generation.weights.linear_makers import LinearMaker, linear_weights
from frameworks.pytorch.loader import load_model_of
from frameworks.quantization.comparison import check_cosine
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.tasks.architectures import architecture_of
from frameworks.types import QuantizationReport
from memory.sizes import format_size

# As of `loading/paged_loading.py`, of layers that quantize weights or activations.
_PACKED_TOLERANCE = 0.25


ReadSpeech = Callable[[Path, Any, EncoderDecoderShape, int, int], ServedSpeech]
"""Reads a folder and its model, its shape, the tokens of the longest text, and the blocks of the KV cache."""


def load_encoder_decoder(load: GeneratorLoad, read_speech: ReadSpeech | None = None) -> ServedModel:
    """`read_speech`: of a model whose encoder reads sounds. Raises InvalidModel, OutOfMemory."""
    folder, entry, device = load.folder, load.entry, torch.device(load.device.id)
    shape = read_encoder_decoder_shape(folder, load.dtype, entry.kv_cache_dtype)
    needs = CodeNeeds(load)
    name = architecture_of(folder)
    model: Any = load_model_of(
        getattr(transformers, name), folder, load.dtype, load.device, load.performance.enable_memory_mapping
    )
    torch.set_num_threads(load.performance.intra_op_threads)
    cache = _cache_of(load, shape, device)
    max_text_tokens = min(shape.max_text_tokens, (cache.blocks - 1) * BLOCK_TOKENS)
    max_source_tokens = min(shape.max_source_tokens, cache.blocks * BLOCK_TOKENS - max_text_tokens)
    source: SourceSpec | None = None
    speech: ServedSpeech | None = None
    if read_speech is not None:
        speech = read_speech(folder, model, shape, max_text_tokens, cache.blocks)
        _check_context(folder, max_source_tokens - shape.max_source_tokens + 1, max_text_tokens)
        prompts = speech.trial_prompts()
    else:
        source = _source_of(load, shape, max_source_tokens, max_text_tokens, cache.blocks)
        prompts = source_prompts(source, shape.vocabulary_size, getattr(model.config, "pad_token_id", None))
    trial = EncoderDecoderTrial(model, folder, shape.vocabulary_size, prompts, max_text_tokens)
    needs.wait_for(model)
    maker = LinearMaker(model, folder, load.bits, entry.kernels)
    phase("layers", len(linear_weights(model)), "layers")
    attention = DecoderAttention(cache, shape.query_heads, biases_of(model.get_decoder(), max_text_tokens))
    try:
        with torch.inference_mode():
            decoder = EncoderDecoder(model, attention, max_text_tokens, maker)
    except NotBatched as error:
        raise InvalidModel(f"{folder}: {name} is not served: {error}; choose another model") from error
    except RuntimeError as error:
        raise (map_device_error(error, f"{folder}: the packed weights", device) or error) from error
    if speech is not None:
        decoder.align(speech.alignment_heads)
    phase("checking the logits")
    layouts = LayoutMaker(cache, shape.query_heads // shape.cache.heads, device)
    runner = EncoderDecoderRunner(decoder, cache, layouts)
    log_trials(maker.products, entry.name, load.bits or load.dtype)
    packed_tolerance = 0.0 if load.bits is None else _PACKED_TOLERANCE
    cosines = trial.check(runner, packed_tolerance)
    report: QuantizationReport | None = None
    if load.bits is not None:
        scheme = f"{load.bits} {maker.products[0].weights if maker.products else 'whole'}"
        report = trial.report(runner, cosines, scheme, maker.original_bytes, maker.held_bytes)
        least = MIN_COSINE[load.bits] if entry.min_cosine is None else entry.min_cosine
        check_cosine(report, least, folder, 'dtype = "bf16" or "f16" is nearer, left out is the original')
    return ServedModel(
        runner,
        BlockPool(cache.blocks, BLOCK_TOKENS),
        max_text_tokens,
        maker.held_bytes + cache.size_bytes,
        report,
        splits_prompts=True,
        products=maker.products,
        source=source,
        speech=speech,
    )


def _check_context(folder: Path, max_source: int, max_text: int) -> None:
    """Raise InvalidModel where the KV cache holds no source with a text."""
    if max_source < 1 or max_text < 1:
        raise InvalidModel(
            f"{folder}: kv_cache_bytes: expected a size that fits a source and a text, got "
            f"{max_source + max_text} tokens; raise it or remove it"
        )


def _source_of(
    load: GeneratorLoad, shape: EncoderDecoderShape, max_source: int, max_text: int, cache_blocks: int
) -> SourceSpec:
    """Return how prompts are read, by the files of the folder. Raises InvalidModel."""
    settings = source_settings(load.folder, shape.vocabulary_size)
    prompt = settings.decoder_prompt
    _check_context(load.folder, max_source, max_text - len(prompt))
    assert load.tokenizer is not None
    languages = load.tokenizer.languages
    config = read_json(load.folder / "config.json")
    return SourceSpec(
        source_task(load.entry.task, architecture_of(load.folder), config),
        max_source,
        prompt,
        BLOCK_TOKENS,
        settings.max_new_tokens,
        settings.min_new_tokens,
        tuple(languages.sources),
        languages.targets,
        languages.named_targets,
        cache_blocks,
    )


def _cache_of(load: GeneratorLoad, shape: EncoderDecoderShape, device: torch.device) -> KeyValueCache:
    """Return the KV cache of a load. Raises InvalidModel, OutOfMemory."""
    size_bytes = shape.kv_bytes(load.entry, load.performance.max_sequences, device.type)
    blocks = size_bytes // (shape.cache.token_bytes * BLOCK_TOKENS)
    if blocks < 2:
        least = format_size(2 * shape.cache.token_bytes * BLOCK_TOKENS)
        raise InvalidModel(
            f"{load.folder}: kv_cache_bytes: expected at least {least}, for a source and a text of {BLOCK_TOKENS} "
            f"tokens, got {format_size(load.entry.kv_cache_bytes or 0)}; raise it or remove it"
        )
    try:
        return KeyValueCache(shape.cache, blocks, device, is_transposed=device.type == "cpu")
    except RuntimeError as error:
        what = f"{load.folder}: kv_cache_bytes of {format_size(size_bytes)}"
        raise (map_device_error(error, what, device) or error) from error
