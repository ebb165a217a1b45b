"""Load a generating model from a folder: by paged attention, or with transformers' own caches where that is unfit."""

from pathlib import Path

import structlog
import torch

from frameworks.devices import Device
from frameworks.errors import InvalidModel
from frameworks.generation.generation_config import default_sampling, eos_token_ids
from frameworks.generation.scheduler import StepScheduler
from frameworks.generation.speculation.proposals import PromptLookup
from frameworks.generation.speculation.speculator import Speculator
from frameworks.generation.step_cost import StepCost
from frameworks.generation.tools.formats import TextFormat, format_of_template, thinks_by_template
from frameworks.generation.types import GenerationSpec
from frameworks.pytorch.generation.cached_loading import load_cached
from frameworks.pytorch.generation.engine import EngineParts, GeneratingModel
from frameworks.pytorch.generation.linear_makers import Bits
from frameworks.pytorch.generation.packed.weight import WeightSource
from frameworks.pytorch.generation.paged_loading import load_paged
from frameworks.pytorch.generation.prompt_scoring import max_scored_tokens
from frameworks.pytorch.generation.sampling import Sampler
from frameworks.pytorch.generation.served import GeneratorLoad, GeneratorPerformance, ServedModel
from frameworks.pytorch.generation.shape import NotPaged, read_limits
from frameworks.pytorch.generation.speculating import Speculation
from frameworks.pytorch.generation.token_masks import TokenMasks
from frameworks.pytorch.generation.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.loader import DTYPE_NAMES
from frameworks.quantization.held_out_text import HELD_OUT_TEXT
from frameworks.settings import TorchModelEntry
from frameworks.types import ModelSpec, TensorType, ValueSpec

_MAX_NUM_BATCHED_TOKENS = {"cpu": 512, "mps": 1024, "cuda": 2048}
log = structlog.get_logger(__name__)


def load_generator(
    folder: Path,
    entry: TorchModelEntry,
    device: Device,
    dtype: str,
    bits: Bits | None,
    performance: GeneratorPerformance,
    source: WeightSource | None = None,
) -> GeneratingModel:
    """Load the model. `dtype`: of the arithmetic, f32, f16 or bf16. `bits`: of the weights of the linear layers, None
    for those of the dtype. `source`: of weights that are packed in their files; None for a folder of plain ones.

    Raises InvalidModel, OutOfMemory.
    """
    if entry.instances > 1:
        raise InvalidModel(
            f"{folder}: instances: expected 1, got {entry.instances}; a generating model computes all texts together, "
            "raise max_batch_size instead"
        )
    vocabulary_size = read_limits(folder).vocabulary_size
    tokenizer = HuggingFaceTokenizer(folder, vocabulary_size)
    text_ids = () if bits is None else tuple(tokenizer.ids_of(HELD_OUT_TEXT, add_special_tokens=True))
    load = GeneratorLoad(folder, entry, device, dtype, bits, performance, text_ids, source)
    served = _served(load)
    spec = _spec(load, served, vocabulary_size, tokenizer)
    sequences = performance.max_sequences
    most = max(entry.max_num_batched_tokens or _MAX_NUM_BATCHED_TOKENS[device.kind], sequences)
    assert spec.generation is not None
    scheduler = StepScheduler(
        served.pool,
        StepCost(most),
        sequences,
        most,
        performance.ageing_s,
        splits_prompts=served.splits_prompts,
        max_scored_tokens=max_scored_tokens(vocabulary_size),
    )
    parts = EngineParts(
        served.runner,
        scheduler,
        Sampler(torch.device(device.id), vocabulary_size),
        TokenMasks(tokenizer.pretrained.backend_tokenizer, vocabulary_size, spec.generation.eos_token_ids),
        tokenizer,
        served.adapters,
        _speculation(entry, served, scheduler),
    )
    loaded = GeneratingModel(parts, spec, performance.intra_op_threads)
    if entry.adapters:
        loaded.list_adapters(tuple(loaded.load_adapter(each.name, each.path) for each in entry.adapters))
    return loaded


def _served(load: GeneratorLoad) -> ServedModel:
    try:
        return load_paged(load)
    except NotPaged as error:
        # The error holds the model by its frames until the end of this block.
        reason = error.message
    served = load_cached(load, reason)
    log.info(
        "paged attention does not fit, so transformers' own caches are used",
        model=load.entry.name,
        reason=reason,
        max_context_tokens=served.max_context_tokens,
        cache_bytes=served.pool.num_blocks * served.runner.block_bytes,
    )
    return served


def _speculation(entry: TorchModelEntry, served: ServedModel, scheduler: StepScheduler) -> Speculation | None:
    if entry.speculation == "none":
        return None
    if served.unpaged_because is not None:
        log.warning("no tokens are proposed, as transformers' own caches take none back", model=entry.name)
        return None
    return Speculation(Speculator(PromptLookup(), entry.num_speculative_tokens, scheduler.cost), scheduler)


def _spec(load: GeneratorLoad, served: ServedModel, vocabulary_size: int, tokenizer: HuggingFaceTokenizer) -> ModelSpec:
    folder, template, tool_format = load.folder, tokenizer.tool_template, load.entry.tool_format
    text_format = TextFormat()
    if template is not None:
        tool_format = tool_format or format_of_template(template.source, template.names)
        text_format = TextFormat(tool_format, thinks_by_template(template.source))
    return ModelSpec(
        framework="pytorch",
        task="generate",
        inputs=(ValueSpec("prompt", TensorType("string", ())),),
        outputs=(ValueSpec("text", TensorType("string", ())),),
        device=load.device.id,
        dtype=served.dtype or DTYPE_NAMES[load.bits or load.dtype],
        memory_bytes=served.memory_bytes,
        quantization=served.quantization,
        products=served.products,
        generation=GenerationSpec(
            max_context_tokens=served.max_context_tokens,
            vocabulary_size=vocabulary_size,
            eos_token_ids=frozenset(each for each in eos_token_ids(folder) if each < vocabulary_size),
            has_chat_template=tokenizer.has_chat_template,
            sampling=default_sampling(folder),
            text_format=text_format,
            has_reasoning_effort=template is not None and template.has_reasoning_effort,
            unpaged_because=served.unpaged_because,
            can_infill=tokenizer.infill_tokens is not None,
        ),
    )
