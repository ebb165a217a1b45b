"""Types of text generation: requests, the description of a model, and responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, Protocol

from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.sources import SourceSpec
from frameworks.generation.tools.formats import TextFormat

FinishReason = Literal["stop", "length"]
"""`stop`: at an end-of-text token, a stop token or a stop string. `length`: at max_tokens or at the context's end."""

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "tools"]

# With 20 alternatives each, about a millisecond.
_TOKENS_FREED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class MessageCall:
    """A tool call in an earlier turn. `arguments`: a JSON object, unless it was cut off."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MessageImage:
    """An image or video file within a message. `at`: the characters of the content before it. `field`: of the request.
    `url`: from which the file is to be fetched; empty once `data` is there.
    """

    data: bytes
    at: int
    field: str
    url: str = ""
    is_video: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `role`: as the model's chat template knows it (`system`, `user`, `assistant`,
    `tool`). `tool_call_id`, `name`: of the call whose result the content is. `reasoning`: what preceded the content.
    `images`: in the order of the content.
    """

    role: str
    content: str
    tool_calls: tuple[MessageCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    images: tuple[MessageImage, ...] = ()


PromptEnding = Literal["response", "messages", "last_message"]
"""Where the prompt of a conversation ends. `response`: the model's turn is begun. `messages`: after the last message.
`last_message`: within the last message, which the text continues.
"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, from which the model's chat template makes a prompt. `tools`: a JSON list for the template, or empty.
    `reasoning_effort` None: the template's default. `variables`: further ones of the template, a JSON object, or empty.
    """

    messages: tuple[Message, ...]
    tools: str = ""
    reasoning_effort: str | None = None
    variables: str = ""
    ending: PromptEnding = "response"

    @property
    def has_images(self) -> bool:
        """Whether a message has images."""
        return any([message.images for message in self.messages])  # noqa: C419 - a list is faster for few messages

    @property
    def has_urls(self) -> bool:
        """Whether an image is still to be fetched."""
        return self.has_images and any(image.url for image in self.images)

    @property
    def images(self) -> tuple[MessageImage, ...]:
        """Return the images of all messages, in order."""
        return tuple(chain.from_iterable(message.images for message in self.messages))


Prompt = str | tuple[int, ...] | Conversation
"""A text, token ids, or a conversation."""


EarlyStopping = bool | Literal["never"]
MAX_BEAMS = 16
"""Of a beam search: each takes memory for its own text."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The options of a beam search, as in transformers' `generate`.

    `num_beams`: texts that are continued at once, at least 2. `length_penalty`: the sum of the log probabilities is
    divided by the length to this power. `early_stopping`: whether the search ends with `num_beams` complete texts;
    `"never"`: it ends when no better one is possible.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """The timestamps in a text of Whisper, as of transformers' WhisperTimeStampLogitsProcessor.

    `first_id`: the token of 0 s; the tokens of later times follow it, and the one that forbids timestamps precedes it.
    `end_id`: ends a text; below it are the tokens of texts. `max_initial`: largest number of the first timestamp; None:
    any. `are_written`: whether the text has timestamps.
    """

    first_id: int
    end_id: int
    max_initial: int | None = None
    are_written: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Order: penalties and bias change the logits, temperature scales them, top_k, top_p
    and min_p remove candidates, then one token is drawn.

    `temperature` 0 is greedy. `top_k` None: all. `seed` None: a new one each time. `top_logprobs` None: no log
    probabilities; 0: of the chosen token; k: also of the k most likely. Log probabilities are those of the model's own
    logits. `bad_words`: the token that would complete one is never chosen. `bad_sequences`: the same, as tokens.
    `begin_suppressed_ids`: are never the first token. `no_repeat_ngram_size`: so many tokens in a row occur once in a
    text; 0: any number of times. `source_ngram_size`: so many tokens in a row of an encoder's source do not occur in
    its text. `beams`: None: one text is continued. `allowed_ids`: each token is one of them; empty: any. `timestamps`:
    of a text of speech; its log probabilities are those of the tokens that are allowed. None: no text of speech.
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
    bad_words: tuple[str, ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    begin_suppressed_ids: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    source_ngram_size: int = 0
    beams: BeamSearch | None = None
    allowed_ids: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether a penalty, a bias or a token that is not allowed changes logits."""
        has_penalty = self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        bans = self.bad_sequences or self.begin_suppressed_ids or self.no_repeat_ngram_size
        return has_penalty or bool(self.logit_bias) or bool(bans)


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a text ends. `max_tokens` None: at the end of the model's context.

    `may_be_fewer`: `max_tokens` is a default, or a limit that the protocol requires. If they exceed the context,
    the text ends with the context.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    may_be_fewer: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that the text must have. `definition`: the schema as JSON, the pattern, or the choices as a JSON list of
    strings; empty for `json_object`; a ToolsDefinition for `tools`. `after_opening`: the prompt ends with `<think>`.
    `thinks`: thinking may precede the form; a ToolsDefinition has an own field for it.
    """

    kind: ConstraintKind
    definition: str = ""
    after_opening: bool = False
    thinks: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`num_choices` texts for each prompt; choice i of prompt p has the index p * num_choices + i. The marks of
    `text_format` are part of the text; `<think>` also if the prompt ends with it. `adapter`: its name; empty for the
    base.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    constraint: Constraint | None = None
    num_choices: int = 1
    text_format: TextFormat = field(default_factory=TextFormat)
    prompt_options: PromptOptions = DEFAULT_OPTIONS
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A loaded adapter of a generating model.

    `number`: identifies this load of it in its process; never 0. `rank`: the largest of a module. `memory_bytes`: of
    its weights.
    """

    name: str
    number: int
    rank: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """The token ids of which one is forced, as in transformers' `generate`. Empty: no token is forced.

    `first`: after a prompt of one token (`forced_bos_token_id`). `last`: where the text reaches its limit of tokens
    (`forced_eos_token_id`).
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.first or self.last)

    def of_token(self, index: int, prompt_tokens: int, max_tokens: int) -> tuple[int, ...]:
        """Return the ids that may be token `index` of the text, counted from 0; empty: it is sampled."""
        if self.last and index == max_tokens - 1:
            return self.last
        return self.first if index == 0 and prompt_tokens == 1 else ()


NOT_FORCED = ForcedTokens()


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The bounds of the images and videos of a conversation. `max_images`: files. `max_image_pixels`: of an image.
    `max_video_frames`: of all videos, as the model reads them. `max_video_seconds`: of a video. `no_videos_because`:
    why the model reads no videos; None: it reads them.
    """

    max_images: int
    max_image_pixels: int
    max_video_frames: int = 256
    max_video_seconds: int = 120
    no_videos_because: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Context, end tokens and sampling of a generating model.

    `max_context_tokens`: prompt and text together, bounded by the model and by its KV cache. `eos_token_ids`:
    each of them ends a text. `sampling`: defaults of the model's own generation_config.json. `text_format`: of tool
    calls and reasoning. `has_reasoning_effort`: whether the chat template reads it. `unpaged_because`: why the model
    runs with transformers' caches; None: it runs by paged attention. `can_infill`: whether the tokenizer has the
    tokens of a text to fill in. `adapters`: those that requests may name. `template_variables`: those of the chat
    template that requests may set. `forced_tokens`: of each text without a constraint. `vision`: None: it reads no
    images. `source`: of a model with an encoder, which reads the prompt; the context is that of its decoder.
    """

    max_context_tokens: int
    vocabulary_size: int
    eos_token_ids: frozenset[int] = frozenset()
    has_chat_template: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    text_format: TextFormat = field(default_factory=TextFormat)
    has_reasoning_effort: bool = False
    unpaged_because: str | None = None
    can_infill: bool = False
    adapters: tuple[AdapterSpec, ...] = ()
    template_variables: frozenset[str] = frozenset()
    forced_tokens: ForcedTokens = NOT_FORCED
    vision: VisionSpec | None = None
    source: SourceSpec | None = None


class TokenText(NamedTuple):
    """One token with its own text, for requests with log probabilities. `logprob` None: it is the first of a prompt."""

    token_id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, str, float], ...] = ()
    """(token id, text, log probability), by falling probability."""
    rank: int | None = None
    """Of a prompt's token, 1 for the most likely one."""
    has_text: bool = True
    """False for a special token, which is no part of the text."""
    parts: tuple[tuple[int, bytes], ...] = ()
    """(token id, bytes) of the token and of those in `top` whose texts are not whole characters."""

    def bytes_of(self, token_id: int, text: str) -> bytes:
        """Return the bytes of this token, or of one in `top`. `text`: its text."""
        return next((own for each, own in self.parts if each == token_id), None) or text.encode()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Further text of one choice: whole characters, without any that a stop string may yet cut.

    `tokens`: those since the last delta, for requests with log probabilities; else empty. `stop_string`: the one that
    ended the text. `is_prompt`: text and tokens are those of the prompt, which precede all others. `num_generated`:
    tokens of the choice up to here, with the one that ended it.
    """

    index: int
    text: str
    finish_reason: FinishReason | None = None
    tokens: tuple[TokenText, ...] = ()
    stop_string: str | None = None
    is_prompt: bool = False
    num_generated: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole text. `stop_string`: the one that ended it; None: another end. `prompt`: its prompt, if that is echoed.
    `prompt_tokens`: for requests with their log probabilities.
    """

    text: str
    finish_reason: FinishReason
    tokens: list[TokenText] = field(default_factory=list)
    stop_string: str | None = None
    prompt: str = ""
    prompt_tokens: list[TokenText] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Usage:
    """`prompt_tokens`: each prompt once; `cached_tokens` of them were found in the cache. `tokens_generated`: of all
    choices, the tokens that ended them included; `reasoning_tokens` of them are the model's thinking, and
    `accepted_tokens` were proposed by speculation. `rejected_tokens` were proposed, and are no part of them.
    """

    prompt_tokens: int
    tokens_generated: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_tokens: int = 0
    rejected_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """The whole response, choices in order of their index."""

    choices: list[Choice]
    usage: Usage

    def drop_tokens(self) -> None:
        """Free the tokens of all choices, a few at a time: the interpreter's lock is held for each step."""
        for choice in self.choices:
            for tokens in (choice.tokens, choice.prompt_tokens):
                while tokens:
                    del tokens[-_TOKENS_FREED_AT_ONCE:]


class Generation(Protocol):
    """A response in progress. Iterated once, by `async for`; ends when every choice has its finish_reason.

    Raises what ends it early: DeadlineExceeded, ModelFailed, Draining, and Overloaded where the reader is too slow.
    """

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """The time of the loop at which the response ends, read or not; None: it has no deadline."""
        ...

    def __aiter__(self) -> "Generation": ...

    async def __anext__(self) -> TextDelta: ...

    def ready(self) -> list[TextDelta]:
        """Return the pieces that are available now. Each piece is returned once."""
        ...

    async def collect(self) -> GenerateAnswer:
        """Wait for the whole response, instead of iterating."""
        ...

    def close(self) -> None:
        """End the sequences that still run, within one step. Harmless when repeated, or after the end."""
        ...
