"""The vocabulary of text generation: what a caller asks, what a model is given and gives, what the caller gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

FinishReason = Literal["stop", "length"]
"""`stop`: at an end-of-text token, a stop token or a stop string. `length`: at max_tokens or at the context's end."""

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `role`: as the model's chat template knows it (`system`, `user`, `assistant`)."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, which the model's chat template makes a prompt of."""

    messages: tuple[Message, ...]


Prompt = str | tuple[int, ...] | Conversation
"""A text, token ids as they are, or a conversation."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, in the order of these fields' work: penalties and bias change the logits, then
    temperature, then the candidates are cut by top_k, top_p and min_p, then one is drawn.

    `temperature` 0 is greedy. `top_k` None: all. `seed` None: another one each time. `top_logprobs` None: no log
    probabilities; 0: of the chosen token; k: also of the k most likely. They are those of the model's own logits.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a text is at its end. `max_tokens` None: at the end of the model's context.

    `may_be_fewer`: nobody asked for just so many; where the context has no room for them it ends the text.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    may_be_fewer: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text has to be. `definition`: the schema as JSON, the pattern, or the choices as a JSON list of strings;
    empty for `json_object`.
    """

    kind: ConstraintKind
    definition: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`num_choices` texts for each prompt; choice i of prompt p has the index p * num_choices + i."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    constraint: Constraint | None = None
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What a generating model reads and writes.

    `max_context_tokens`: prompt and text together, as the model and its key/value memory allow. `eos_token_ids`: any
    of them ends a text. `sampling`: the defaults of the model's own generation_config.json.
    """

    max_context_tokens: int
    vocabulary_size: int
    eos_token_ids: frozenset[int] = frozenset()
    has_chat_template: bool = False
    sampling: Sampling = field(default_factory=Sampling)


class TokenMatcher(Protocol):
    """Where one text stands within its constraint. Used by one thread."""

    def fill_mask(self, mask: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        """Sets bit i % 32 of word i // 32 where token i may come next; `mask` is int32 [ceil(vocabulary / 32)]."""
        ...

    def accept(self, token_id: int) -> None:
        """Goes on past a token that the mask allowed."""
        ...

    def copy(self) -> "TokenMatcher":
        """Another one, that stands at the same place."""
        ...


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One text to be generated, as a model is given it.

    `sequence_id`: another one for each. `max_tokens`: at least 1, and within the context. `stop_token_ids`: those of
    the end of text among them, unless they are to be ignored; none of them is chosen before `min_tokens`.
    `sampling.seed` is set. `arrived_s`: time.perf_counter; one that waits gains a level of `priority` as it ages.
    `is_read_whole`: nobody waits for its single tokens, which may come to its reader a few together.
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


class GeneratedToken(NamedTuple):
    """One token of a sequence. With the last one comes `finish_reason`; `is_text` is False for a token that ended the
    sequence and is not shown. `logprob` None: not asked for. `top_logprobs`: (token id, log probability), by falling
    probability.
    """

    sequence_id: int
    token_id: int
    finish_reason: FinishReason | None = None
    is_text: bool = True
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepStats:
    """How a generating model stands after a step. The last three only grow, for as long as it is loaded."""

    running: int = 0
    waiting: int = 0
    kv_used_bytes: int = 0
    """Held by sequences that run."""
    kv_cached_bytes: int = 0
    """Kept of prompts and texts that have been, and given up when room is needed."""
    kv_total_bytes: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave. `begun`: sequences of which something was computed for the first time, with the number of their
    prompt's tokens that were known already. `failed`: sequences that end with an error.
    """

    tokens: list[GeneratedToken]
    begun: list[tuple[int, int]]
    failed: list[tuple[int, Exception]]
    stats: StepStats


class TokenText(NamedTuple):
    """One generated token with its own text, for those who asked for log probabilities."""

    token_id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, str, float], ...] = ()
    """(token id, text, log probability), by falling probability."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more of one choice's text: whole characters, and nothing that a stop string may yet cut off.

    `tokens`: those that came since the last piece, where log probabilities were asked for; else empty.
    """

    index: int
    text: str
    finish_reason: FinishReason | None = None
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole text."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """`prompt_tokens`: read, each prompt once; `cached_tokens` of them were known. `tokens_generated`: in all choices,
    the tokens that ended them included.
    """

    prompt_tokens: int
    tokens_generated: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """The whole answer, choices in order of their index."""

    choices: list[Choice]
    usage: Usage


class Generation(Protocol):
    """An answer in the making. Iterated once, by `async for`; ends when every choice has its finish_reason.

    Raises what ends it early: DeadlineExceeded, ModelFailed, Draining, and Overloaded where the reader is too slow.
    """

    @property
    def usage(self) -> Usage:
        """So far."""
        ...

    def __aiter__(self) -> "Generation": ...

    async def __anext__(self) -> Piece: ...

    def ready(self) -> list[Piece]:
        """The next pieces that are there already: none of them is given again."""
        ...

    async def whole(self) -> GenerateAnswer:
        """Waits for all of it, in the place of iterating."""
        ...

    def close(self) -> None:
        """Ends what still runs; its place is free within one step. Harmless when called again, or after the end."""
        ...
