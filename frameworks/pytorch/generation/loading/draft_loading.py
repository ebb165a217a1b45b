"""Load the draft model of a language model, and check that both have the same tokens."""

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.loading.paged_loading import load_paged
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.speculation.drafting import DraftModel
from frameworks.pytorch.generation.step.kernel_switch import KernelSwitch
from frameworks.pytorch.generation.step.shape import NotPaged, kv_bytes, read_limits, read_shape
from frameworks.scheduling.speculation.draft_sequences import DraftSequences

# Tokens of prompts that the draft model computes in one step.
_MAX_PREFILL_TOKENS = {"cpu": 512, "mps": 1024, "cuda": 2048}
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """`memory_bytes`: of its weights and its KV cache. `switch`: as of a ServedModel."""

    model: DraftModel
    memory_bytes: int
    switch: KernelSwitch | None = None


def draft_kv_bytes(
    entry: TorchModelEntry, folder: Path, draft_folder: Path, dtypes: tuple[str, str], max_sequences: int, kind: str
) -> int:
    """Return the bytes of the draft model's KV cache: it holds all sequences of the model's KV cache, and the tokens
    that are proposed for each.

    `entry`, `folder`: of the model. `dtypes`: of both models, f32, f16 or bf16. `kind`: of the device.
    Raises InvalidModel.
    """
    try:
        shape = read_shape(folder, dtypes[0], entry.kv_cache_dtype)
    except NotPaged:
        return 0  # nothing is proposed for such a model, and no draft model is loaded
    try:
        draft_shape = read_shape(draft_folder, dtypes[1], entry.kv_cache_dtype)
    except NotPaged as error:
        raise _not_paged(draft_folder, error) from error
    blocks = kv_bytes(entry, shape, max_sequences, kind) // (shape.cache.token_bytes * BLOCK_TOKENS)
    blocks += max_sequences * (1 + -(-entry.num_speculative_tokens // BLOCK_TOKENS))
    return blocks * draft_shape.cache.token_bytes * BLOCK_TOKENS


def load_draft(load: GeneratorLoad, tokenizer: HuggingFaceTokenizer, device: torch.device) -> LoadedDraft:
    """Load the draft model. `tokenizer`: of the model that it proposes tokens for. Raises InvalidModel, OutOfMemory."""
    folder = load.folder
    vocabulary_size = read_limits(folder).vocabulary_size
    check_tokens(tokenizer, HuggingFaceTokenizer(folder, vocabulary_size), folder)
    try:
        served = load_paged(load)
    except NotPaged as error:
        raise _not_paged(folder, error) from error
    sequences = DraftSequences(served.pool)
    most = _MAX_PREFILL_TOKENS[load.device.kind]
    model = DraftModel(folder.name, served.runner, sequences, served.max_context_tokens, vocabulary_size, most, device)
    log.info("draft model loaded", model=load.entry.name, draft_model=folder.name, memory_bytes=served.memory_bytes)
    return LoadedDraft(model, served.memory_bytes, served.switch)


def check_tokens(tokenizer: HuggingFaceTokenizer, other: HuggingFaceTokenizer, folder: Path) -> None:
    """Raise InvalidModel unless the draft model's tokenizer, `other`, has the same tokens. `folder`: of it."""
    ours, theirs = tokenizer.pretrained.get_vocab(), other.pretrained.get_vocab()
    if ours == theirs:
        return
    found = f"{len(theirs)} tokens" if len(ours) != len(theirs) else f"{len(theirs)} tokens with other ids"
    raise InvalidModel(
        f"{folder}: draft_model: expected the {len(ours)} tokens of the model, got {found}; "
        "choose a draft model with the same tokenizer"
    )


def _not_paged(folder: Path, error: NotPaged) -> InvalidModel:
    return InvalidModel(
        f"{folder}: draft_model: expected a model that paged attention serves, got one where {error.message}; "
        "choose another one"
    )
