"""Load a generating model from a folder: read its shape, check our arithmetic against transformers' own, build it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.pytorch_utils import Conv1D

from frameworks.devices import Device
from frameworks.errors import InvalidModel
from frameworks.generation.blocks import BlockPool
from frameworks.generation.generation_config import default_sampling, eos_token_ids
from frameworks.generation.scheduler import StepScheduler
from frameworks.generation.step_cost import StepCost
from frameworks.generation.tools.formats import TextFormat, format_of_template, thinks_by_template
from frameworks.generation.types import GenerationSpec
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.attention import BlockAttention
from frameworks.pytorch.generation.decoder import Decoder
from frameworks.pytorch.generation.engine import EngineParts, GeneratingModel
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS, CacheShape, KeyValueCache
from frameworks.pytorch.generation.linear import (
    can_pack,
    can_quantize,
    int8_linear_maker,
    make_linear,
    original_product,
)
from frameworks.pytorch.generation.llama import LlamaDecoder, is_llama
from frameworks.pytorch.generation.sampling import Sampler
from frameworks.pytorch.generation.step_layout import LayoutMaker
from frameworks.pytorch.generation.token_masks import TokenMasks
from frameworks.pytorch.generation.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.transformers_decoder import TransformersDecoder
from frameworks.pytorch.generation.trial import Trial, WeightBytes
from frameworks.pytorch.int8_choice import GENERATOR_ROWS, Int8Choice, choose_int8, log_choice
from frameworks.pytorch.loader import DTYPE_NAMES, DTYPES, load_causal_model
from frameworks.quantization.comparison import check_cosine
from frameworks.settings import ToolFormat, TorchModelEntry
from frameworks.types import ModelSpec, QuantizationReport, TensorType, ValueSpec
from memory.sizes import format_size

# Without a value in the entry: enough for `max_batch_size` texts as long as the context, up to this bound.
_MAX_KV_BYTES = {"cpu": 1 << 30, "mps": 2 << 30, "cuda": 4 << 30}
_MAX_NUM_BATCHED_TOKENS = {"cpu": 512, "mps": 1024, "cuda": 2048}
# Context length of a model whose files name none.
_DEFAULT_CONTEXT = 2048
# Frequencies that change with the length of the batch's texts: a text would depend on its neighbours. Up to the length
# of the training they do not change.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class GeneratorShape:
    """The size of the model by its config.json. `shared_elements`: elements of an embedding table that is also the
    last layer's weights.
    """

    max_context_tokens: int
    vocabulary_size: int
    cache: CacheShape
    query_heads: int
    shared_elements: int = 0


@dataclass(frozen=True, slots=True)
class GeneratorPerformance:
    """`max_sequences`: texts that run at once. `intra_op_threads`: CPU threads of a step. `ageing_s`: after which a
    waiting text gains a level of priority.
    """

    max_sequences: int
    intra_op_threads: int
    ageing_s: float = 1.0
    enable_memory_mapping: bool = True


def read_shape(folder: Path, dtype: str) -> GeneratorShape:
    """Read config.json with transformers' own class for it. `dtype`: in which the model is served.

    Raises InvalidModel if it does not state how large the model is.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        ).get_text_config(decoder=True)
        heads = int(config.num_attention_heads)
        key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        cache = CacheShape(int(config.num_hidden_layers), key_heads, head_size, DTYPES[dtype])
        vocabulary_size = int(config.vocab_size)
        shared = vocabulary_size * int(config.hidden_size) if config.tie_word_embeddings else 0
        return GeneratorShape(_context(config), vocabulary_size, cache, heads, shared)
    except InvalidModel:
        raise
    except Exception as error:
        raise InvalidModel(f"{folder / 'config.json'}: transformers cannot read it: {error}") from error


def kv_bytes(entry: TorchModelEntry, shape: GeneratorShape, max_sequences: int, kind: str) -> int:
    """Return the bytes of the key/value cache, in whole blocks, on a device of this kind (`cpu`, `cuda`, `mps`)."""
    block_bytes = shape.cache.token_bytes * BLOCK_TOKENS
    if entry.kv_cache_bytes is not None:
        return entry.kv_cache_bytes // block_bytes * block_bytes
    blocks_per_text = -(-shape.max_context_tokens // BLOCK_TOKENS)
    wanted = max_sequences * blocks_per_text * block_bytes
    # At least one text of the maximum length fits.
    return min(wanted, max(_MAX_KV_BYTES[kind] // block_bytes, blocks_per_text) * block_bytes)


def load_generator(
    folder: Path,
    entry: TorchModelEntry,
    device: Device,
    dtype: str,
    is_int8: bool,
    performance: GeneratorPerformance,
) -> GeneratingModel:
    """Load the model. `dtype`: of the arithmetic, f32, f16 or bf16. `is_int8`: whether the linear layers have int8
    weights.

    Raises InvalidModel, OutOfMemory.
    """
    if entry.instances > 1:
        raise InvalidModel(
            f"{folder}: instances: expected 1, got {entry.instances}; a generating model computes all texts together, "
            "raise max_batch_size instead"
        )
    shape = read_shape(folder, dtype)
    tokenizer = HuggingFaceTokenizer(folder, shape.vocabulary_size)
    model: Any = load_causal_model(folder, dtype, device, performance.enable_memory_mapping)
    torch.set_num_threads(performance.intra_op_threads)
    place = torch.device(device.id)
    cache = _cache(folder, entry, shape, performance.max_sequences, place)
    shape = replace(shape, max_context_tokens=min(shape.max_context_tokens, cache.blocks * BLOCK_TOKENS))
    trial = Trial(model, folder, shape.vocabulary_size, shape.max_context_tokens)
    choice = _int8_choice(model, entry.name) if is_int8 else None
    sizes = _weight_bytes(model, choice)
    layouts = LayoutMaker(cache, shape.query_heads // cache.shape.heads, place)
    decoder = _decoder(folder, model, shape, cache, choice)
    report: QuantizationReport | None = None
    if choice is not None:
        report = trial.report(decoder, layouts, sizes, choice)
        check_cosine(report, entry.min_cosine, folder, 'dtype = "bf16" or "f16" is nearer, left out is the original')
    else:
        trial.check(decoder, layouts)
    spec = _spec(folder, device, "int8" if is_int8 else dtype, shape, tokenizer, entry.tool_format)
    weight_bytes = sizes.as_is if sizes.as_int8 is None else sizes.as_int8
    spec = replace(spec, memory_bytes=weight_bytes + cache.size_bytes, quantization=report)
    sequences = performance.max_sequences
    most = max(entry.max_num_batched_tokens or _MAX_NUM_BATCHED_TOKENS[device.kind], sequences)
    pool = BlockPool(cache.blocks, BLOCK_TOKENS)
    assert spec.generation is not None
    parts = EngineParts(
        decoder,
        cache,
        layouts,
        StepScheduler(pool, StepCost(most), sequences, most, performance.ageing_s),
        Sampler(place, shape.vocabulary_size),
        TokenMasks(tokenizer.pretrained.backend_tokenizer, shape.vocabulary_size, spec.generation.eos_token_ids),
        tokenizer,
    )
    return GeneratingModel(parts, spec, performance.intra_op_threads)


def _decoder(
    folder: Path, model: Any, shape: GeneratorShape, cache: KeyValueCache, choice: Int8Choice | None
) -> Decoder:
    attention = BlockAttention(cache, shape.query_heads, shape.cache.head_size**-0.5)
    make = make_linear if choice is None else int8_linear_maker(choice.kernel)
    try:
        return LlamaDecoder(model, attention, make) if is_llama(model) else TransformersDecoder(model, attention, make)
    except RuntimeError as error:
        ours = map_device_error(error, f"{folder}: the weights, put in order,", model.device)
        raise (ours or error) from error


def _cache(
    folder: Path, entry: TorchModelEntry, shape: GeneratorShape, max_sequences: int, device: torch.device
) -> KeyValueCache:
    size_bytes = kv_bytes(entry, shape, max_sequences, device.type)
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


def _spec(
    folder: Path,
    device: Device,
    dtype: str,
    shape: GeneratorShape,
    tokenizer: HuggingFaceTokenizer,
    tool_format: ToolFormat | None,
) -> ModelSpec:
    template = tokenizer.tool_template
    text_format = TextFormat()
    if template is not None:
        tool_format = tool_format or format_of_template(template.source, template.names)
        text_format = TextFormat(tool_format, thinks_by_template(template.source))
    return ModelSpec(
        framework="pytorch",
        task="generate",
        inputs=(ValueSpec("prompt", TensorType("string", ())),),
        outputs=(ValueSpec("text", TensorType("string", ())),),
        device=device.id,
        dtype=DTYPE_NAMES[dtype],
        memory_bytes=0,
        generation=GenerationSpec(
            max_context_tokens=shape.max_context_tokens,
            vocabulary_size=shape.vocabulary_size,
            eos_token_ids=frozenset(each for each in eos_token_ids(folder) if each < shape.vocabulary_size),
            has_chat_template=tokenizer.has_chat_template,
            sampling=default_sampling(folder),
            text_format=text_format,
            has_reasoning_effort=template is not None and template.has_reasoning_effort,
        ),
    )


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


def _context(config: Any) -> int:
    """Return the maximum length of a text in tokens, by config.json."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have separate ones for each kind of layer.
    for each in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        trained = each.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if each.get("rope_type") in _LENGTH_DEPENDENT_ROPE and trained:
            positions = min(int(positions or trained), int(trained))
    return int(positions or _DEFAULT_CONTEXT)
