"""Load a model for paged attention, and check our arithmetic against transformers' own."""

from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from frameworks.errors import InvalidModel
from frameworks.generation.blocks import BlockPool
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.adapters.set import AdapterSet
from frameworks.pytorch.generation.attention import BlockAttention
from frameworks.pytorch.generation.decoder import Decoder
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.linear import (
    can_pack,
    can_quantize,
    int8_linear_maker,
    make_linear,
    original_product,
)
from frameworks.pytorch.generation.llama import LlamaDecoder, is_llama
from frameworks.pytorch.generation.runner import PagedRunner
from frameworks.pytorch.generation.served import GeneratorLoad, ServedModel
from frameworks.pytorch.generation.shape import GeneratorShape, NotPaged, kv_bytes, read_shape
from frameworks.pytorch.generation.step_layout import LayoutMaker
from frameworks.pytorch.generation.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.trial import Trial, WeightBytes
from frameworks.pytorch.int8_choice import GENERATOR_ROWS, Int8Choice, choose_int8, log_choice
from frameworks.pytorch.loader import DTYPES, load_causal_model
from frameworks.quantization.comparison import check_cosine
from frameworks.types import QuantizationReport
from memory.sizes import format_size


def load_paged(load: GeneratorLoad) -> ServedModel:
    """Raises InvalidModel, OutOfMemory; NotPaged where paged attention does not serve the model."""
    folder, entry, device = load.folder, load.entry, load.device
    shape = read_shape(folder, load.dtype)
    model: Any = load_causal_model(folder, load.dtype, device, load.performance.enable_memory_mapping)
    torch.set_num_threads(load.performance.intra_op_threads)
    place = torch.device(device.id)
    cache = _cache(load, shape, place)
    max_context_tokens = min(shape.max_context_tokens, cache.blocks * BLOCK_TOKENS)
    trial = Trial(model, folder, shape.vocabulary_size, max_context_tokens)
    choice = _int8_choice(model, entry.name) if load.is_int8 else None
    sizes = _weight_bytes(model, choice)
    layouts = LayoutMaker(cache, shape.query_heads // cache.shape.heads, place)
    decoder = _decoder(load, model, shape, cache, choice)
    report: QuantizationReport | None = None
    if choice is not None:
        report = trial.report(decoder, layouts, sizes, choice)
        check_cosine(report, entry.min_cosine, folder, 'dtype = "bf16" or "f16" is nearer, left out is the original')
    else:
        trial.check(decoder, layouts)
    weight_bytes = sizes.as_is if sizes.as_int8 is None else sizes.as_int8
    adapters = AdapterSet(decoder, place, DTYPES[load.dtype], folder)
    return ServedModel(
        PagedRunner(decoder, cache, layouts, adapters),
        BlockPool(cache.blocks, BLOCK_TOKENS),
        max_context_tokens,
        weight_bytes + cache.size_bytes,
        report,
        adapters,
    )


def _decoder(
    load: GeneratorLoad, model: Any, shape: GeneratorShape, cache: KeyValueCache, choice: Int8Choice | None
) -> Decoder:
    attention = BlockAttention(cache, shape.query_heads, shape.cache.head_size**-0.5)
    make = make_linear if choice is None else int8_linear_maker(choice.kernel)
    try:
        return LlamaDecoder(model, attention, make) if is_llama(model) else TransformersDecoder(model, attention, make)
    except RuntimeError as error:
        ours = map_device_error(error, f"{load.folder}: the weights, put in order,", model.device)
        raise (ours or error) from error
    except ValueError as error:
        raise NotPaged(f"transformers does not change its attention: {error}") from error


def _cache(load: GeneratorLoad, shape: GeneratorShape, device: torch.device) -> KeyValueCache:
    folder, entry = load.folder, load.entry
    size_bytes = kv_bytes(entry, shape, load.performance.max_sequences, device.type)
    blocks = size_bytes // (shape.cache.token_bytes * BLOCK_TOKENS)
    if not blocks:
        raise InvalidModel(
            f"{folder}: kv_cache_bytes: expected at least {format_size(shape.cache.token_bytes * BLOCK_TOKENS)}, which "
            f"{BLOCK_TOKENS} tokens take, got {format_size(entry.kv_cache_bytes or 0)}; raise it or remove it"
        )
    try:
        return KeyValueCache(shape.cache, blocks, device)
    except RuntimeError as error:
        ours = map_device_error(error, f"{folder}: kv_cache_bytes of {format_size(size_bytes)}", device)
        raise (ours or error) from error


def _int8_choice(model: Any, name: str) -> Int8Choice:
    """Choose the int8 product by the model's largest layer, and log it. `name`: of the model's entry."""
    weight = max(_products(model), key=torch.Tensor.numel)
    choice = choose_int8(weight, GENERATOR_ROWS, original_product)
    log_choice(choice, name)
    return choice


def _products(model: Any) -> list[torch.Tensor]:
    """Return the weights of all products, [outputs, inputs]."""
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    return [module.weight if isinstance(module, torch.nn.Linear) else module.weight.t() for module in linears]


def _weight_bytes(model: Any, choice: Int8Choice | None) -> WeightBytes:
    """Return the bytes that the decoder will hold. Weights that are also an embedding table are held twice if the
    linear layer packs or quantises them.
    """
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    tables = {module.weight.data_ptr() for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    products = _products(model)
    each_once = sum(tensor.nbytes for tensor in tensors.values())
    as_is = each_once + sum(weight.nbytes for weight in products if weight.data_ptr() in tables and can_pack(weight))
    if choice is None:
        return WeightBytes(as_is)
    quantized = [weight for weight in products if can_quantize(weight)]
    replaced = sum(weight.nbytes for weight in quantized if weight.data_ptr() not in tables)
    held = sum(choice.kernel.product.held_bytes(*weight.shape) for weight in quantized)
    return WeightBytes(as_is, each_once - replaced + held)
