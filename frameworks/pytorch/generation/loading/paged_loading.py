"""Load a model for paged attention, and check its logits against transformers' own."""

from contextlib import nullcontext
from typing import Any

import structlog
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.progress import phase, working
from frameworks.pytorch import device_kernels
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.compiled_step import compiled_step
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.fused_llama import FusedLlamaDecoder
from frameworks.pytorch.generation.decoders.graph_steps import GraphSteps, graphs_of
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder, is_llama
from frameworks.pytorch.generation.decoders.runner import PagedRunner, current
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.decoders.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.loading.cached_model import CachedModel
from frameworks.pytorch.generation.loading.code_needs import CodeNeeds
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel, load_model
from frameworks.pytorch.generation.step.kernel_switch import KernelSwitch, SwitchParts
from frameworks.pytorch.generation.step.quantization_report import Reporter
from frameworks.pytorch.generation.step.shape import GeneratorShape, NotPaged, kv_bytes, read_shape
from frameworks.pytorch.generation.step.trial import Trial
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
    model = load_model(load)
    torch.set_num_threads(load.performance.intra_op_threads)
    torch_device = torch.device(device.id)
    has_kernels = device_kernels.are_available(torch_device)
    cache = _cache(load, shape, torch_device, is_transposed=torch_device.type == "cpu" and not has_kernels)
    max_context_tokens = min(shape.max_context_tokens, cache.blocks * BLOCK_TOKENS)
    trial = Trial(
        model, folder, shape.vocabulary_size, max_context_tokens, load.text_ids if load.bits is not None else ()
    )
    if load.source is None and (load.bits is not None or load.dtype != "f32"):
        # With other weights the tolerance may exceed the change of logits by an encoder's later tokens.
        trial.check_causal(CachedModel(model).logits_without_cache)
    table_bytes, dtype = packed_bytes(model), packed_dtype(model)
    code = None if has_kernels else needs.wait_or_defer(model)
    maker = LinearMaker(model, folder, load.bits, entry.kernels, defers_compiled=code is not None)
    layouts = LayoutMaker(cache, shape.query_heads // cache.shape.heads, torch_device, makes_tables=has_kernels)
    with working("quantize") if load.bits is not None else nullcontext():
        phase("layers", len(linear_weights(model)) + len(packed_modules(model)), "layers")
        attention = BlockAttention(
            cache,
            shape.query_heads,
            shape.cache.head_size**-0.5,
            DeviceAttention(cache, shape.query_heads, torch_device) if has_kernels else None,
        )
        decoder = _decoder(load, model, attention, maker)
    phase("checking the logits")
    step = None if code is not None or has_kernels else compiled_step(decoder, cache, is_idle=True)
    compiled_adapters = None if step is None else step.adapters
    adapters = AdapterSet(
        decoder, torch_device, DTYPES[load.dtype], folder, compiled_adapters, awaits_compiled=code is not None
    )
    runner = PagedRunner(decoder, cache, layouts, adapters, step)
    log_trials(maker.products, entry.name, load.bits or load.dtype)
    report: QuantizationReport | None = None
    packed_tolerance = _PACKED_TOLERANCE if load.source is not None or load.bits is not None else 0.0
    reporter: Reporter | None = None
    if load.bits is None:
        trial.check(runner, shape.cache.dtype, packed_tolerance)
    else:
        reporter = Reporter(entry.name, folder, load.bits, entry.min_cosine, trial, maker.original_bytes)
        report = reporter.measure(runner.compute, maker.products, maker.held_bytes)
    graphs = graphs_of(torch_device) if has_kernels else None
    note, graph_bytes = None, 0
    if torch_device.type == "cuda" and not has_kernels:
        reason = device_kernels.unavailable_because(torch_device)
        log.warning(
            "steps run without the kernels for this device, which takes longer", model=entry.name, reason=reason
        )
        note = f"none: {reason}"
    if graphs is not None:
        max_blocks = -(-max_context_tokens // BLOCK_TOKENS)
        steps = GraphSteps(decoder, graphs, torch_device, load.performance.max_sequences, max_blocks)
        note, graph_bytes = _capture(entry.name, runner, steps)
    pool = BlockPool(cache.blocks, BLOCK_TOKENS)
    pool.moves_ended = step is None and not has_kernels
    switched = SwitchParts(
        entry.name, load.bits or load.dtype, runner, adapters, maker, trial, pool, packed_tolerance, reporter, report
    )
    return ServedModel(
        runner,
        pool,
        max_context_tokens,
        maker.held_bytes + table_bytes + cache.size_bytes + graph_bytes,
        report,
        adapters,
        products=maker.products,
        dtype=dtype,
        switch=None if code is None else KernelSwitch(switched, code),
        graphs=note,
    )


def _capture(name: str, runner: PagedRunner, steps: GraphSteps) -> tuple[str, int]:
    """Let graphs compute the steps of a runner, where they can. Return what `GET /models` says of them, and their
    bytes.
    """
    try:
        with current(runner.cache.device):
            steps.capture()
    except RuntimeError as error:
        reason, _, _ = str(error).partition("\n")
        log.warning("decode steps run without graphs", model=name, reason=reason)
        return f"none: {reason}", 0
    runner.step = steps
    log.info("decode steps run as graphs", model=name, max_texts=steps.max_texts, graph_bytes=steps.size_bytes)
    return f"up to {steps.max_texts} texts", steps.size_bytes


def _decoder(load: GeneratorLoad, model: Any, attention: BlockAttention, make: LinearMaker) -> Decoder:
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


def _cache(load: GeneratorLoad, shape: GeneratorShape, device: torch.device, *, is_transposed: bool) -> KeyValueCache:
    folder, entry = load.folder, load.entry
    size_bytes = kv_bytes(entry, shape, load.performance.max_sequences, device.type)
    blocks = size_bytes // (shape.cache.token_bytes * BLOCK_TOKENS)
    if not blocks:
        raise InvalidModel(
            f"{folder}: kv_cache_bytes: expected at least {format_size(shape.cache.token_bytes * BLOCK_TOKENS)}, which "
            f"{BLOCK_TOKENS} tokens take, got {format_size(entry.kv_cache_bytes or 0)}; raise it or remove it"
        )
    try:
        return KeyValueCache(shape.cache, blocks, device, is_transposed=is_transposed)
    except RuntimeError as error:
        ours = map_device_error(error, f"{folder}: kv_cache_bytes of {format_size(size_bytes)}", device)
        raise (ours or error) from error
