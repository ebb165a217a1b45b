"""Load a model for paged attention, and check its logits against transformers' own."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.progress import phase, working
from frameworks.pytorch import device_kernels
from frameworks.pytorch.device.graphs import graphs_of
from frameworks.pytorch.device.queue import StreamQueue, current
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.compiled_step import compiled_step
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.fused_llama import FusedLlamaDecoder
from frameworks.pytorch.generation.decoders.graph_steps import GraphSteps
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder, is_llama
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.decoders.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.loading.cached_model import CachedModel
from frameworks.pytorch.generation.loading.code_needs import CodeNeeds
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel, load_model
from frameworks.pytorch.generation.loading.vision_loading import (
    Vision,
    drop_vision,
    language_part,
    load_vision,
    see_by_blocks,
)
from frameworks.pytorch.generation.sampling.device_sampler import DeviceSampler
from frameworks.pytorch.generation.step.kernel_switch import KernelSwitch, SwitchParts
from frameworks.pytorch.generation.step.quantization_report import Reporter
from frameworks.pytorch.generation.step.shape import GeneratorShape, NotPaged, kv_bytes, read_shape
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.pytorch.generation.vision.language import other_bytes, sees
from frameworks.pytorch.generation.vision.tower import MAX_CACHED_BYTES
from frameworks.pytorch.generation.weights.kernel_choice import log_trials
from frameworks.pytorch.generation.weights.linear_makers import LinearMaker, linear_weights
from frameworks.pytorch.generation.weights.packed.building import packed_bytes, packed_dtype, packed_modules
from frameworks.pytorch.loader import DTYPES
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.types import QuantizationReport
from memory.sizes import format_size

log = structlog.get_logger(__name__)

# Largest error of the logits with packed weights, relative to their spread: layers may quantize activations, and
# weights once more. Another kind of attention is off by more than 1.
_PACKED_TOLERANCE = 0.25


def load_paged(load: GeneratorLoad) -> ServedModel:
    """Raises InvalidModel, OutOfMemory; NotPaged where paged attention does not serve the model."""
    folder, entry, device = load.folder, load.entry, load.device
    shape = read_shape(folder, load.dtype, entry.kv_cache_dtype)
    needs = CodeNeeds(load)
    whole = load_model(load)
    model = language_part(whole)
    torch.set_num_threads(load.performance.intra_op_threads)
    torch_device = torch.device(device.id)
    has_kernels = device_kernels.are_available(torch_device)
    cache = make_cache(load, shape, torch_device, is_transposed=torch_device.type == "cpu" and not has_kernels)
    max_context_tokens = min(shape.max_context_tokens, cache.blocks * BLOCK_TOKENS)
    trial = Trial(
        model, folder, shape.vocabulary_size, max_context_tokens, load.text_ids if load.bits is not None else ()
    )
    vision = load_vision(load, whole, max_context_tokens) if sees(whole) and entry.vision else None
    if sees(whole) and vision is None:
        drop_vision(model)
    if load.source is None and (load.bits is not None or load.dtype != "f32"):
        # With other weights the tolerance may exceed the change of logits by an encoder's later tokens.
        trial.check_causal(CachedModel(whole).logits_without_cache)
    table_bytes, dtype = packed_bytes(model), packed_dtype(model)
    code = None if has_kernels else needs.wait_or_defer(model)
    maker = LinearMaker(model, folder, load.bits, entry.kernels, defers_compiled=code is not None)
    sampled = SampledIds(torch_device, load.performance.max_sequences) if has_kernels else None
    queries_per_head = shape.query_heads // cache.shape.heads
    layouts = LayoutMaker(cache, queries_per_head, torch_device, makes_tables=has_kernels, sampled=sampled)
    with working("quantize") if load.bits is not None else nullcontext():
        phase("layers", len(linear_weights(model)) + len(packed_modules(model)), "layers")
        attention = BlockAttention(
            cache,
            shape.query_heads,
            shape.cache.head_size**-0.5,
            DeviceAttention(cache, shape.query_heads, torch_device) if has_kernels else None,
        )
        decoder = make_decoder(load, model, attention, maker)
    phase("checking the logits")
    step = None if code is not None or has_kernels else compiled_step(decoder, cache, is_idle=True)
    compiled_adapters = None if step is None else step.adapters
    adapters = AdapterSet(
        decoder, torch_device, DTYPES[load.dtype], folder, compiled_adapters, awaits_compiled=code is not None
    )
    runner = PagedRunner(
        decoder, cache, layouts, adapters, step, None if sampled is None else StreamQueue(torch_device), sampled
    )
    log_trials(maker.products, entry.name, load.bits or load.dtype)
    report: QuantizationReport | None = None
    packed_tolerance = _PACKED_TOLERANCE if load.source is not None or load.bits is not None else 0.0
    reporter: Reporter | None = None
    if load.bits is None:
        trial.check(runner, shape.cache.dtype, packed_tolerance)
    else:
        reporter = Reporter(entry.name, folder, load.bits, entry.min_cosine, trial, maker.original_bytes)
        report = reporter.measure(runner.compute, maker.products, maker.held_bytes)
    vision_bytes = 0
    if vision is not None:
        vision_bytes = _make_vision_fast(vision, model, needs)
        see_by_blocks(load, vision, whole, runner, packed_tolerance)
        vision_bytes += other_bytes(model) + MAX_CACHED_BYTES + vision.activation_bytes(max_context_tokens)
    on_device = _device_parts(load, runner, shape.vocabulary_size, max_context_tokens)
    pool = BlockPool(cache.blocks, BLOCK_TOKENS)
    pool.moves_ended = step is None and not has_kernels
    switched = SwitchParts(
        entry.name, load.bits or load.dtype, runner, adapters, maker, trial, pool, packed_tolerance, reporter, report
    )
    return ServedModel(
        runner,
        pool,
        max_context_tokens,
        maker.held_bytes + table_bytes + cache.size_bytes + on_device.size_bytes + vision_bytes,
        report,
        adapters,
        products=maker.products,
        dtype=dtype,
        switch=None if code is None else KernelSwitch(switched, code),
        graphs=on_device.graphs,
        device_sampler=on_device.sampler,
        image_prompts=None if vision is None else vision.prompts,
        tower=runner.tower,
    )


def _make_vision_fast(vision: Vision, part: Any, needs: CodeNeeds) -> int:
    """Compute with our layers of the packed weights outside the language model; return about how many bytes they take.

    `part`: the language model.
    """
    own = set(packed_modules(part))
    modules = [module for module in packed_modules(part.whole) if module not in own]
    needs.wait(modules)
    return vision.make_fast(modules)


class _DeviceParts(NamedTuple):
    """The parts of a step that the device does by itself. `graphs`: as ModelSpec.graphs. `sampler`: None where the
    host samples. `size_bytes`: on the device.
    """

    graphs: str | None
    sampler: DeviceSampler | None
    size_bytes: int


def _device_parts(
    load: GeneratorLoad, runner: PagedRunner, vocabulary_size: int, max_context_tokens: int
) -> _DeviceParts:
    """Let graphs compute the decodes of a runner, and kernels sample, where they can."""
    name, device = load.entry.name, torch.device(load.device.id)
    if runner.queue is None or runner.sampled is None:
        if device.type != "cuda":
            return _DeviceParts(None, None, 0)
        reason = device_kernels.unavailable_because(device)
        log.warning("steps run without the kernels for this device, which takes longer", model=name, reason=reason)
        return _DeviceParts(f"none: {reason}", None, 0)
    sampler = DeviceSampler(device, vocabulary_size, runner.sampled, runner.queue)
    graphs = graphs_of(device)
    if graphs is None:
        return _DeviceParts(None, sampler, sampler.size_bytes)
    steps = GraphSteps(runner.decoder, graphs, runner.queue, runner.sampled, -(-max_context_tokens // BLOCK_TOKENS))
    try:
        with current(device):
            steps.capture()
    except RuntimeError as error:
        reason, _, _ = str(error).partition("\n")
        log.warning("decode steps run without graphs", model=name, reason=reason)
        return _DeviceParts(f"none: {reason}", sampler, sampler.size_bytes)
    runner.step = steps
    log.info("decode steps run as graphs", model=name, max_texts=steps.max_texts, graph_bytes=steps.size_bytes)
    return _DeviceParts(f"up to {steps.max_texts} texts", sampler, steps.size_bytes + sampler.size_bytes)


def make_decoder(load: GeneratorLoad, model: Any, attention: BlockAttention, make: LinearMaker) -> Decoder:
    """Return the fastest decoder of a model. Raises OutOfMemory; NotPaged where its attention cannot be replaced."""
    kind: type[LlamaDecoder | TransformersDecoder] = TransformersDecoder
    if is_llama(model):
        kind = LlamaDecoder if attention.device is None else FusedLlamaDecoder
    try:
        return kind(model, attention, make)
    except RuntimeError as error:
        ours = map_device_error(error, f"{load.folder}: the packed weights", model.device)
        raise (ours or error) from error
    except ValueError as error:
        raise NotPaged(f"transformers does not replace its attention: {error}") from error


def make_cache(
    load: GeneratorLoad, shape: GeneratorShape, device: torch.device, *, is_transposed: bool, ranks: int = 1
) -> KeyValueCache:
    """Return the KV cache of a load. `ranks`: divide its heads; the cache of one has all blocks.

    Raises InvalidModel, OutOfMemory.
    """
    folder, entry = load.folder, load.entry
    if entry.kv_cache_dtype == "fp8" and not device_kernels.are_available(device):
        raise InvalidModel(
            f'{folder}: kv_cache_dtype: expected "auto", "f32", "bf16" or "f16" on {device}, got "fp8", which its '
            f"kernels on CUDA read: {device_kernels.unavailable_because(device)}; choose another"
        )
    size_bytes = kv_bytes(entry, shape, load.performance.max_sequences, device.type)
    blocks = size_bytes // (shape.cache.token_bytes * BLOCK_TOKENS)
    if not blocks:
        raise InvalidModel(
            f"{folder}: kv_cache_bytes: expected at least {format_size(shape.cache.token_bytes * BLOCK_TOKENS)}, which "
            f"{BLOCK_TOKENS} tokens take, got {format_size(entry.kv_cache_bytes or 0)}; raise it or remove it"
        )
    own = shape.cache if ranks == 1 else replace(shape.cache, heads=shape.cache.heads // ranks)
    try:
        return KeyValueCache(own, blocks, device, is_transposed=is_transposed)
    except RuntimeError as error:
        ours = map_device_error(error, f"{folder}: kv_cache_bytes of {format_size(size_bytes)}", device)
        raise (ours or error) from error
