"""A sequence in progress, and the part of it that a step computes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frameworks.core.fairness import TenantShare
from frameworks.generation.media import ImageGroup, PromptMedia
from frameworks.generation.sequences import NO_TOKEN, SequenceRequest
from frameworks.scheduling.steps.blocks import Chain, Copy
from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS

# Bound of a part's tokens times the tokens that they attend to: so many scores and mask elements are in memory.
_MAX_ATTENTION_PAIRS = 1 << 22


class Sequence:
    """One text in progress. `token_ids`: the prompt and the generated tokens. `blocks` hold the keys and values of the
    first `num_computed_tokens` of them. `was_displaced`: it was preempted so that another tenant could start. `cache`:
    of a runner for the sequence, outside its blocks; it is dropped with them. `num_to_score`: tokens of the
    prompt whose logits are requested, and `num_scored` of them were computed. `unread_row`: of the tokens that the last
    step sampled, the one that continues the text and that the host has not read; -1: the host knows all tokens.
    `width`: the beams of a search. They share the blocks of the source, and each has others for its own tokens, which
    are NO_TOKEN here. `alignment`: the attention of its text to the source, once it is computed.
    """

    __slots__ = (
        "alignment",
        "blocks",
        "cache",
        "chain",
        "has_begun",
        "num_computed_tokens",
        "num_scored",
        "num_to_score",
        "order",
        "request",
        "sequence_id",
        "token_ids",
        "unread_row",
        "was_displaced",
        "width",
    )

    def __init__(self, request: SequenceRequest, order: float) -> None:
        self.request = request
        self.sequence_id = request.sequence_id
        self.width = request.width
        self.order = order
        self.token_ids = list(request.prompt_ids)
        self.num_computed_tokens = 0
        self.blocks: list[int] = []
        self.cache: Any = None
        self.chain = Chain(request.cache_scope)
        self.has_begun = False
        self.was_displaced = False
        self.unread_row = -1
        # The logits after the last token of the prompt belong to the next one.
        self.num_to_score = 0 if request.prompt_logprobs is None else len(request.prompt_ids) - 1
        self.num_scored = 0
        self.alignment: Any = None

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of tokens to compute before the next one can be sampled; 0 while the last one of all is unread."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_shared_tokens(self) -> int:
        """Number of the tokens that all beams share: the source."""
        media = self.request.media
        return 0 if media is None else media.padded_source

    def num_columns(self, num_tokens: int, block_tokens: int) -> int:
        """Return the blocks that this number of tokens takes."""
        if self.width == 1:
            return -(-num_tokens // block_tokens)
        shared = self.num_shared_tokens
        return shared // block_tokens + self.width * -(-max(0, num_tokens - shared) // block_tokens)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def is_unread(self) -> bool:
        """Whether the host has not read its last token. Such a sequence cannot start, as its blocks have no key yet."""
        return self.unread_row >= 0

    @property
    def rope_offset(self) -> int:
        """The position of a token after the prompt, less its index: images may take fewer positions than tokens."""
        media = self.request.media
        return 0 if media is None else media.offset

    @property
    def content_ids(self) -> list[int]:
        """The tokens by which its cached blocks are found: those of images are their hashes."""
        media = self.request.media
        return self.token_ids if media is None else media.content_ids(self.token_ids)

    def expect(self, row: int) -> bool:
        """Continue with this row of the sampled tokens. Return False, and add none, where it is the last by length."""
        self.unread_row = row
        if self.num_generated_tokens + 1 >= self.request.max_tokens:
            return False
        self.token_ids.append(NO_TOKEN)
        return True

    def receive(self, token_id: int) -> None:
        """Continue with a sampled token, whether it was expected or not."""
        if self.token_ids[-1] == NO_TOKEN:
            self.token_ids.pop()
        self.token_ids.append(token_id)
        self.unread_row = -1

    def add_beam_tokens(self) -> None:
        """Continue each beam with a token of its own."""
        self.token_ids.append(NO_TOKEN)

    def __lt__(self, other: "Sequence") -> bool:
        return (self.order, self.sequence_id) < (other.order, other.sequence_id)


@dataclass(slots=True)
class StepPart:
    """The part of one sequence in a step: `num_tokens` tokens from `start` on. `is_scored`: logits are computed of all
    of them, for the log probabilities of the prompt. `proposed`: the last of the tokens, which are no part of the
    sequence yet. A part does not change: what follows from its fields is computed once, before the step adds a token.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    is_scored: bool = False
    proposed: tuple[int, ...] = ()
    completes: bool = field(init=False, compare=False)
    """Whether the next token can be sampled after this part."""
    num_sampled: int = field(init=False, compare=False)
    """Number of its last tokens after each of which a token is sampled."""
    num_logits: int = field(init=False, compare=False)
    """Number of its last tokens whose logits are computed."""

    def __post_init__(self) -> None:
        num_proposed = len(self.proposed)
        self.completes = self.start + self.num_tokens - num_proposed == len(self.sequence.token_ids)
        self.num_sampled = 1 + num_proposed if self.completes else 0
        self.num_logits = self.num_tokens if self.is_scored else self.num_sampled

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        own = self.sequence.token_ids[self.start : self.start + self.num_tokens - len(self.proposed)]
        return [*own, *self.proposed] if self.proposed else own


def always_ready(_: Sequence, __: ImageGroup) -> bool:
    """As StepPlan.is_ready, of a model without vectors of images."""
    return True


@dataclass(slots=True)
class StepPlan:
    """One step. `copies` are made first, in this order. `parts`: decodes, of one token each, come first. They and the
    others, prompts and decodes with proposed tokens, are each sorted by adapter, so that its rows are adjacent.

    `begun`: ids of the sequences that start for the first time, with the number of prompt tokens found in the cache.
    `costs`: of each tenant in the step; a decode costs 1. `splits_prompts`: whether prompts are computed in parts.
    `scorable`: number of tokens that may yet be scored; `is_scored`: some are. `whole_prompts`: of
    models that read images in a pass of their own, that may yet be computed. `is_ready`: whether the vectors of a group
    are computed. `wanted`: the first group that is not, and its sequence.
    """

    copies: list[Copy] = field(default_factory=list)
    parts: list[StepPart] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)
    costs: dict[TenantShare, float] = field(default_factory=dict)
    splits_prompts: bool = True
    scorable: int = MIN_PROMPT_TOKENS
    is_scored: bool = False
    whole_prompts: int = 1
    is_ready: Callable[[Sequence, ImageGroup], bool] = always_ready
    wanted: tuple[Sequence, ImageGroup] | None = None

    def accepts(self, sequence: Sequence, cached_tokens: int | None = None) -> bool:
        """Return False for a prompt that has to be scored, or reads images in a pass of its own, if no further one may
        be in this step; and for one whose next token needs an image that is not ready, which is then `wanted`.

        `cached_tokens`: found in the cache, for a sequence that has not started.
        """
        if self.scorable <= 0 and sequence.num_scored < sequence.num_to_score:
            return False
        media = sequence.request.media
        if media is None:
            return True
        start = sequence.num_computed_tokens if cached_tokens is None else cached_tokens
        if media.is_whole:
            return self.whole_prompts > 0 or start > 0
        return self._missing(sequence, media, start, start + 1) is None

    def add_part(self, sequence: Sequence, budget: int) -> int:
        """Add a part of at most `budget` tokens, or of the whole prompt; return their number.

        The sequence is one that `accepts` returned True for. An image that is not divided may exceed the budget.
        """
        count = sequence.num_uncomputed_tokens
        if self.splits_prompts:
            most = max(MIN_PROMPT_TOKENS, _MAX_ATTENTION_PAIRS // len(sequence.token_ids))
            count = min(count, budget, most)
        if sequence.request.media is not None:
            count = self._with_images(sequence, sequence.request.media, count)
        is_scored = sequence.num_scored < sequence.num_to_score
        if is_scored:
            count = min(count, self.scorable)
            self.scorable -= count
            self.is_scored = True
        self.parts.append(StepPart(sequence, sequence.num_computed_tokens, count, is_scored))
        return count

    def _with_images(self, sequence: Sequence, media: PromptMedia, count: int) -> int:
        """Return the tokens of a part that ends before the first image that is not ready."""
        start = sequence.num_computed_tokens
        if media.is_whole:
            self.whole_prompts -= start == 0
        else:
            missing = self._missing(sequence, media, start, start + count)
            count = count if missing is None else missing - start
        end = media.end_of_part(start, start + count)
        return min(end, len(sequence.token_ids)) - start

    def _missing(self, sequence: Sequence, media: PromptMedia, start: int, end: int) -> int | None:
        """Return the first token from `start` to `end` whose image is not ready."""
        found = media.first_missing(start, end, lambda group: self.is_ready(sequence, group))
        if found is None:
            return None
        if self.wanted is None:
            self.wanted = sequence, found[1]
        return found[0]
