"""Load a generating model from a folder: by paged attention, or with transformers' own caches where that is unfit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.generation.generation_config import default_sampling, eos_token_ids, forced_tokens
from frameworks.generation.media import ImageGroup
from frameworks.generation.tools.formats import TextFormat, format_of_template, thinks_by_template
from frameworks.generation.types import GenerationSpec
from frameworks.pytorch.generation.loading.cached_loading import load_cached
from frameworks.pytorch.generation.loading.draft_loading import LoadedDraft, load_draft
from frameworks.pytorch.generation.loading.paged_loading import load_paged
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel
from frameworks.pytorch.generation.prompts.source_tokenizer import PythonTokenizer, source_tokenizer
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.sampling.prompt_scoring import max_scored_tokens
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from frameworks.pytorch.generation.speculation.drafting import DraftProposer
from frameworks.pytorch.generation.speculation.speculating import Speculation
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.step.parts import EndsWithModel, EngineParts
from frameworks.pytorch.generation.step.shape import NotPaged, read_limits
from frameworks.pytorch.generation.vision.tower import VisionTower
from frameworks.pytorch.loader import DTYPE_NAMES
from frameworks.quantization.texts import HELD_OUT_TEXT
from frameworks.scheduling.speculation.proposals import PromptLookup
from frameworks.scheduling.speculation.speculator import Speculator
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence
from frameworks.scheduling.steps.step_cost import StepCost
from frameworks.types import ModelSpec, TensorType, ValueSpec

_MAX_NUM_BATCHED_TOKENS = {"cpu": 512, "mps": 1024, "cuda": 2048}
AnyTokenizer = HuggingFaceTokenizer | PythonTokenizer
log = structlog.get_logger(__name__)


def load_generator(
    load: GeneratorLoad,
    draft: GeneratorLoad | None = None,
    serve: Callable[[GeneratorLoad], ServedModel] | None = None,
    *,
    has_encoder: bool = False,
) -> GeneratingModel:
    """Load the model. `draft`: the load of its draft model; None: it has none. `serve`: loads what computes its steps;
    None: paged attention on one device, or transformers' own caches. `has_encoder`: it reads prompts with an encoder.
    Raises InvalidModel, OutOfMemory.
    """
    folder, entry = load.folder, load.entry
    if entry.instances > 1:
        raise InvalidModel(
            f"{folder}: instances: expected 1, got {entry.instances}; a generating model computes all texts together, "
            "raise max_batch_size instead"
        )
    vocabulary_size = read_limits(folder).vocabulary_size
    tokenizer: AnyTokenizer = (source_tokenizer if has_encoder else HuggingFaceTokenizer)(folder, vocabulary_size)
    load = replace(load, tokenizer=tokenizer)
    if load.bits is not None:
        load = replace(load, text_ids=tuple(tokenizer.ids_of(HELD_OUT_TEXT, add_special_tokens=True)))
    served = (serve or _served)(load)
    try:
        return _loaded(load, served, draft, tokenizer, vocabulary_size)
    except BaseException:
        if served.followers is not None:
            served.followers.close()
        raise


def _loaded(
    load: GeneratorLoad,
    served: ServedModel,
    draft: GeneratorLoad | None,
    tokenizer: AnyTokenizer,
    vocabulary_size: int,
) -> GeneratingModel:
    entry, device, performance = load.entry, load.device, load.performance
    drafting = None
    if draft is not None and _can_propose(served, entry.name):
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        drafting = load_draft(draft, tokenizer, torch.device(device.id))
        served = replace(served, memory_bytes=served.memory_bytes + drafting.memory_bytes)
    spec = _spec(load, served, vocabulary_size, tokenizer)
    sequences = performance.max_sequences
    most = max(entry.max_num_batched_tokens or _MAX_NUM_BATCHED_TOKENS[device.kind], sequences)
    assert spec.decoder is not None
    scheduler = StepScheduler(
        served.pool,
        StepCost(most),
        sequences,
        most,
        performance.ageing_s,
        splits_prompts=served.splits_prompts,
        max_scored_tokens=max_scored_tokens(vocabulary_size),
    )
    if served.has_encoder:
        scheduler.max_whole_prompts = sequences
    speculation = _speculation(entry, served, scheduler, drafting, vocabulary_size)
    parts = EngineParts(
        served.runner,
        scheduler,
        Sampler(torch.device(device.id), vocabulary_size),
        TokenMasks(
            getattr(tokenizer.pretrained, "backend_tokenizer", None), vocabulary_size, spec.decoder.eos_token_ids
        ),
        tokenizer,
        served.adapters,
        speculation,
        # Tokens are proposed after those that the host knows.
        served.device_sampler if speculation is None else None,
        served.image_prompts,
        served.tower,
        None if served.speech is None else served.speech.pipeline,
    )
    if served.tower is not None:
        served.tower.pace(entry.name, performance.intra_op_threads)
        scheduler.is_ready = partial(_has_vectors, served.tower)
    closing: list[EndsWithModel] = [each.switch for each in (served, drafting) if each and each.switch is not None]
    if served.followers is not None:
        closing.append(served.followers)
    loaded = GeneratingModel(parts, spec, performance.intra_op_threads, closing)
    if entry.adapters:
        loaded.list_adapters(tuple(loaded.load_adapter(each.name, each.path) for each in entry.adapters))
    if served.switch is not None:
        served.switch.start(loaded.note_products)
    if drafting is not None and drafting.switch is not None:
        drafting.switch.start(lambda *_: None)
    return loaded


def _has_vectors(tower: VisionTower, sequence: Sequence, group: ImageGroup) -> bool:
    """As StepPlan.is_ready."""
    return tower.has(group, sequence.request.tenant.cache_scope)


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


def _speculation(
    entry: TorchModelEntry,
    served: ServedModel,
    scheduler: StepScheduler,
    draft: LoadedDraft | None,
    vocabulary_size: int,
) -> Speculation | None:
    most = entry.num_speculative_tokens
    if draft is not None:
        sampler = Sampler(draft.model.device, vocabulary_size)
        proposer = DraftProposer(draft.model, sampler, vocabulary_size, scheduler.cost)
        return Speculation(Speculator(proposer, most, scheduler.cost), scheduler, proposer)
    if entry.speculation == "none" or not _can_propose(served, entry.name):
        return None
    return Speculation(Speculator(PromptLookup(), most, scheduler.cost), scheduler)


def _can_propose(served: ServedModel, name: str) -> bool:
    """Whether tokens can be proposed for the texts of a model. Warns where they cannot."""
    if served.has_encoder:
        return False
    if served.unpaged_because is not None:
        log.warning("no tokens are proposed, as transformers' own caches take none back", model=name)
    return served.unpaged_because is None


def _spec(load: GeneratorLoad, served: ServedModel, vocabulary_size: int, tokenizer: AnyTokenizer) -> ModelSpec:
    folder, template, tool_format = load.folder, tokenizer.tool_template, load.entry.tool_format
    text_format = TextFormat()
    if template is not None:
        tool_format = tool_format or format_of_template(template.source, template.names)
        text_format = TextFormat(tool_format, thinks_by_template(template.source))
    generation = GenerationSpec(
        max_context_tokens=served.max_context_tokens,
        vocabulary_size=vocabulary_size,
        eos_token_ids=frozenset(each for each in eos_token_ids(folder) if each < vocabulary_size),
        has_chat_template=tokenizer.has_chat_template,
        sampling=default_sampling(folder, has_encoder=served.has_encoder),
        text_format=text_format,
        has_reasoning_effort=template is not None and template.has_reasoning_effort,
        unpaged_because=served.unpaged_because,
        can_infill=tokenizer.infill_tokens is not None,
        template_variables=frozenset() if template is None else template.variables,
        forced_tokens=forced_tokens(folder, vocabulary_size),
        source=served.source,
        vision=None if served.image_prompts is None else served.image_prompts.bounds,
    )
    spec = ModelSpec(
        framework="pytorch",
        task="generate",
        inputs=(ValueSpec("prompt", TensorType("string", ())),),
        outputs=(ValueSpec("text", TensorType("string", ())),),
        device=",".join(served.devices) or load.device.id,
        dtype=served.dtype or DTYPE_NAMES[load.bits or load.dtype],
        memory_bytes=served.memory_bytes,
        quantization=served.quantization,
        products=served.products,
        awaits_kernels=served.switch is not None,
        generation=generation,
        graphs=served.graphs,
    )
    if served.speech is None:
        return spec
    task = served.speech.task
    return replace(
        spec,
        task=task.name,
        inputs=tuple(ValueSpec(name, TensorType("string", (-1,))) for name in task.inputs),
        outputs=(ValueSpec("predictions", TensorType("string", (-1,))),),
        generation=None,
        pipeline=task,
        speech=replace(served.speech.spec, generation=generation),
    )
