"""One sequence as a model receives it, and the result of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.media import PromptMedia
from frameworks.generation.prompt_scores import PromptScores
from frameworks.generation.types import NOT_FORCED, FinishReason, ForcedTokens, Sampling

Alignment = np.ndarray[Any, np.dtype[np.float32]]
NO_TOKEN = -1
"""The token of a sequence that ends without any."""


class TokenMatcher(Protocol):
    """The state of one sequence's grammar mask. Used by one thread."""

    def fill_mask(self, mask: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        """Set bit i % 32 of word i // 32 where token i is allowed next; `mask` is int32 [ceil(vocabulary / 32)]."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance past a token that the mask allowed."""
        ...

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after another from the first on, are allowed."""
        ...

    def copy(self) -> "TokenMatcher":
        """Return an independent matcher at the same position."""
        ...


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate, as a model receives it.

    `sequence_id`: unique. `max_tokens`: within the context; 0: the sequence ends after its prompt. `stop_token_ids`:
    includes the end-of-text tokens unless those are ignored; none of them is sampled before `min_tokens`.
    `sampling.seed` is set. `arrived_s`: time.perf_counter; a waiting request gains a level of `priority` as it ages.
    `is_read_whole`: the caller needs no single tokens, so several may be delivered together. `tenant`: is charged for
    the computed tokens. `is_seeded`: the caller chose the seed, so that it has to give the same text each time.
    `prompt_logprobs`: number of alternatives to each token of the prompt; None: no log probabilities of the prompt.
    `adapter_id`: the number of an adapter; 0 for the base. `bad_sequences`: the tokens of `sampling.bad_words`.
    `forced_tokens`: are not sampled; empty with a matcher. `media`: the images of the prompt; None for a text.
    `is_aligned`: the attention of the prompt's text to its source is returned; `max_tokens` is 0.
    """

    sequence_id: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    matcher: TokenMatcher | None = None
    priority: int = field(kw_only=True)
    arrived_s: float = 0.0
    is_read_whole: bool = False
    tenant: Tenant = DEFAULT_TENANT
    prompt_logprobs: int | None = None
    adapter_id: int = 0
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    is_seeded: bool = True
    forced_tokens: ForcedTokens = NOT_FORCED
    media: PromptMedia | None = None
    is_aligned: bool = False

    @property
    def text_prompt_ids(self) -> tuple[int, ...]:
        """The tokens that the text continues: those of a prompt without the source of an encoder."""
        return self.prompt_ids if self.media is None else self.prompt_ids[self.media.padded_source :]

    @property
    def width(self) -> int:
        """Return the number of texts that are continued at once: the beams of a search, else 1."""
        return 1 if self.sampling.beams is None else self.sampling.beams.num_beams

    @property
    def num_prompt_tokens(self) -> int:
        """Return the tokens that the caller sent: the source of an encoder without its padding, or the prompt."""
        media = self.media
        return media.source_tokens if media is not None and media.padded_source else len(self.prompt_ids)

    @property
    def cache_scope(self) -> str:
        """The scope of its cached blocks: another tenant or adapter has other keys and values."""
        scope = self.tenant.cache_scope
        return f"{scope}\0{self.adapter_id}" if self.adapter_id else scope


class GeneratedToken(NamedTuple):
    """One token of a sequence. The last one has a `finish_reason`; `is_text` is False for a token that ended the
    sequence and is not shown. `token_id` NO_TOKEN: there is none. `logprob` None: not requested. `top_logprobs`: (token
    id, log probability), by falling probability.
    """

    sequence_id: int
    token_id: int
    finish_reason: FinishReason | None = None
    is_text: bool = True
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepStats:
    """State of a generating model after a step. The last three only grow while it is loaded."""

    running: int = 0
    waiting: int = 0
    kv_used_bytes: int = 0
    """Held by running sequences."""
    kv_cached_bytes: int = 0
    """Cached from earlier prompts and texts, evicted when no block is free."""
    kv_total_bytes: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class StepResult:
    """Outcome of a step, which the model fills in.

    `begun`: sequences computed for the first time, with the number of their prompt tokens found in the cache. `failed`:
    sequences that end with an error. `num_sequences`: that were computed. `costs`: of each tenant in the step, in any
    unit. `scored`: log probabilities of prompts that are complete. `ended`: sequences that end without a token.
    `num_proposed`: draft tokens, of which `num_accepted` were accepted. `speculated`: the same of each sequence that
    had any, as (id, proposed, accepted). `aligned`: by id, the attention of the tokens of a text to the source, float32
    [heads, tokens, source tokens].
    """

    tokens: list[GeneratedToken]
    begun: list[tuple[int, int]]
    failed: list[tuple[int, Exception]]
    stats: StepStats
    num_sequences: int = 0
    costs: tuple[tuple[Tenant, float], ...] = ()
    scored: list[PromptScores] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    num_proposed: int = 0
    num_accepted: int = 0
    speculated: list[tuple[int, int, int]] = field(default_factory=list)
    aligned: dict[int, Alignment] = field(default_factory=dict)
