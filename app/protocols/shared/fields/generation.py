"""Fields of text generation, shared by all protocols: sampling, stopping, number of texts, and messages.

The Annotated types state the bounds of each field once. `to_sampling`, `to_stopping` and `to_conversation` build the
request from a validated body; they raise InvalidInput for limits that depend on the model.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32, Body, Remedy, got
from app.protocols.shared.fields.message_content import Part, TextPart, read_content
from frameworks.core.errors import InvalidInput
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.types import (
    MAX_BEAMS,
    BeamSearch,
    Conversation,
    GenerationSpec,
    Message,
    Sampling,
    Stopping,
)

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_ALL_STOP_CHARACTERS = 2048
"""Of all stop strings of a request together, and of all its bad words."""
MAX_BAD_WORDS = 128
MAX_NAMED_TOKENS = 1024
"""Limit of `logit_bias` and of `stop_token_ids`."""
MAX_MESSAGES = 10_000

# Lower temperatures are greedy: divided by them, logits would be infinite.
_MIN_TEMPERATURE = 1e-5
MAX_ROLE_CHARACTERS = 64
MAX_NGRAM_TOKENS = 64
MAX_LANGUAGE_CHARACTERS = 64
# Up to so many objects are validated in well under a millisecond.
_FEW_ITEMS = 64
_MESSAGE_FIELDS = frozenset({"role", "content"})
_PART_FIELDS = frozenset({"type", "text"})

Temperature = Annotated[
    float | None,
    Field(ge=0, le=100, description="0: always the most likely token. Default: the model's own, else 1."),
]
TopP = Annotated[
    float | None,
    Field(
        gt=0,
        le=1,
        description="Sample from the most likely tokens that together have this probability. Default: the model's own.",
    ),
    Remedy('for the most likely token alone send "temperature": 0'),
]
TopK = Annotated[
    int | None,
    Field(
        ge=-1,
        le=MAX_INT32,
        description="Sample from this number of most likely tokens; 0 or -1: all. Default: the model's own.",
    ),
]
MinP = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description="Sample from tokens with at least this share of the most likely one's probability. Default: the "
        "model's own.",
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    Field(
        ge=0.01,
        le=100,
        description="Above 1, tokens of the prompt and of the text become less likely. Default: the model's own.",
    ),
]
FrequencyPenalty = Annotated[
    float | None, Field(ge=-2, le=2, description="Subtracted from a token's logit for each of its occurrences.")
]
PresencePenalty = Annotated[
    float | None, Field(ge=-2, le=2, description="Subtracted once from the logit of a token that occurred.")
]
LogitBias = Annotated[
    Annotated[
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$", examples=["17"])], Annotated[float, Field(ge=-100, le=100)]],
        Field(max_length=MAX_NAMED_TOKENS, json_schema_extra={"additionalProperties": False}),
    ]
    | None,
    Field(description="Token id to the number that is added to its logit."),
]
Seed = Annotated[
    int | None, Field(ge=0, le=2**63 - 1, description="Equal seeds give equal texts. Default: a random seed.")
]
MaxTokens = Annotated[int | None, Field(ge=1, le=MAX_INT32, description="Maximum number of generated tokens.")]
MinTokens = Annotated[
    int | None, Field(ge=0, le=MAX_INT32, description="Number of tokens before which a text does not end.")
]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None,
    Field(description="Strings that end a text; they are not part of it."),
]
BadWords = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None,
    Field(description="Words that a text does not have: the token that would complete one is never chosen."),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
StopTokenIds = Annotated[
    Annotated[list[TokenId], Field(max_length=MAX_NAMED_TOKENS, fail_fast=True)] | None,
    Field(description="Tokens that end a text; they are not part of it."),
]
IgnoreEos = Annotated[bool | None, Field(description="Continue after the model's end-of-text token.")]
NumChoices = Annotated[int | None, Field(ge=1, le=MAX_CHOICES, description="Number of texts for each prompt.")]
TopLogprobs = Annotated[
    int | None,
    Field(ge=0, le=MAX_TOP_LOGPROBS, description="Number of most likely tokens reported at each position."),
]
Logprobs = Annotated[
    bool | Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None,
    Field(description="Report log probabilities, and this number of most likely tokens at each position; true: 0."),
]
Stream = Annotated[bool | None, Field(description="Stream the response as server-sent events.")]


LanguageCode = Annotated[str, Field(min_length=1, max_length=MAX_LANGUAGE_CHARACTERS)] | None


class SamplingFields(Body):
    """Options of sampling; `to_sampling` builds the Sampling."""

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    frequency_penalty: FrequencyPenalty = 0
    presence_penalty: PresencePenalty = 0
    logit_bias: LogitBias = None
    seed: Seed = None
    bad_words: BadWords = None


class SearchFields(Body):
    """Options of models with an encoder: of their search, and the languages of their texts."""

    num_beams: Annotated[int, Field(ge=1, le=MAX_BEAMS)] | None = Field(
        None,
        description="Texts that are continued at once, of which the best is returned. Default: the model's, else 1.",
    )
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = Field(
        None,
        description="The score of a text is divided by its length to this power. Default: the model's, else 1.",
    )
    early_stopping: bool | Literal["never"] | None = Field(
        None,
        description='Whether a search ends with num_beams complete texts; "never": when no better one is possible. '
        "Default: the model's own, else false.",
    )
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MAX_NGRAM_TOKENS)] | None = Field(
        None,
        description="So many tokens in a row occur once in a text; 0: any number of times. Default: the model's.",
    )
    source_language: LanguageCode = Field(None, description="Of the prompt, a code of the model's tokenizer.")
    target_language: LanguageCode = Field(None, description="Of the text, a code of the model's tokenizer.")


class StoppingFields(Body):
    """Conditions that end a text; `to_stopping` builds the Stopping."""

    max_tokens: MaxTokens = None
    min_tokens: MinTokens = 0
    stop: Stop = None
    stop_token_ids: StopTokenIds = None
    ignore_eos: IgnoreEos = False


class ChatMessage(Body):
    """One turn of a conversation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "…"}]})

    role: str = Field(min_length=1, max_length=MAX_ROLE_CHARACTERS, description="As in the model's chat template.")
    content: str | Annotated[list[Part], Field(fail_fast=True)]


def build_messages(messages: Any, kind: type[Body] = ChatMessage) -> Any:
    """Build the messages of a long list, and join the parts of a long content; leave what is invalid as it is.

    pydantic validates a list in one call, and no other thread runs meanwhile. It accepts a built message as it is, and
    ends at the first one that is invalid.
    """
    if not isinstance(messages, list):
        return messages
    are_many = len(messages) > _FEW_ITEMS
    return [_built(message, are_many, kind) if type(message) is dict else message for message in messages]


def _built(message: dict[str, Any], are_many: bool, kind: type[Body]) -> Any:
    content = message.get("content")
    if type(content) is list and (are_many or len(content) > _FEW_ITEMS):
        parts = [_built_part(part) for part in content]
        if all(type(part) is TextPart for part in parts):
            content = "".join(part.text for part in parts)
        message = {**message, "content": content if type(content) is str else parts}
    role = message.get("role")
    if not are_many or type(content) is not str or message.keys() != _MESSAGE_FIELDS:
        return message
    is_role = type(role) is str and 0 < len(role) <= MAX_ROLE_CHARACTERS
    return kind.model_construct(role=role, content=content) if is_role else message


def _built_part(part: Any) -> Any:
    if type(part) is dict and part.keys() == _PART_FIELDS and part["type"] == "text" and type(part["text"]) is str:
        return TextPart.model_construct(type="text", text=part["text"])
    return part


Messages = Annotated[
    list[ChatMessage],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    BeforeValidator(build_messages),
]


def to_sampling(body: SamplingFields, spec: GenerationSpec, top_logprobs: int | None = None) -> Sampling:
    """Fill omitted fields with the defaults of the model. Raises InvalidInput for a token outside its vocabulary, and
    for too many characters of bad words.

    `top_logprobs`: number of alternatives reported at each position; None: no log probabilities.
    """
    own = spec.sampling
    temperature = own.temperature if body.temperature is None else body.temperature
    top_k = own.top_k if body.top_k is None else body.top_k
    # The bans and the beams of the model's files stay.
    return replace(
        own,
        repetition_penalty=own.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_to_logit_bias(body.logit_bias, spec.vocabulary_size) if body.logit_bias else {},
        temperature=temperature if temperature >= _MIN_TEMPERATURE else 0.0,
        top_k=top_k if top_k is not None and top_k > 0 else None,
        top_p=own.top_p if body.top_p is None else body.top_p,
        min_p=own.min_p if body.min_p is None else body.min_p,
        seed=body.seed,
        top_logprobs=top_logprobs,
        bad_words=_as_strings(body.bad_words, "bad_words") if body.bad_words else (),
    )


def to_search(body: SearchFields, sampling: Sampling, spec: GenerationSpec) -> Sampling:
    """Return the sampling with the options of a search. Raises InvalidInput for a model without an encoder."""
    names = ("num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if not given:
        return sampling
    if spec.source is None:
        name = next(iter(given))
        raise InvalidInput(name, "expected none for a model without an encoder, got some; omit the field")
    own = sampling.beams
    num_beams = given.pop("num_beams", 1 if own is None else own.num_beams)
    ngram_size = given.pop("no_repeat_ngram_size", sampling.no_repeat_ngram_size)
    beams = None if num_beams < 2 else replace(own or BeamSearch(num_beams), num_beams=num_beams, **given)
    if body.num_beams is not None and beams is not None and sampling.temperature > 0:
        raise InvalidInput(
            "num_beams", f"expected 1 with a temperature above 0, got {num_beams}; set temperature to 0, or omit one"
        )
    return replace(sampling, beams=beams, no_repeat_ngram_size=ngram_size)


def to_languages(body: SearchFields, spec: GenerationSpec, options: PromptOptions = DEFAULT_OPTIONS) -> PromptOptions:
    """Return the options of a prompt with its languages. Raises InvalidInput for one that the model does not know."""
    source = spec.source
    known = {
        "source_language": () if source is None else source.source_languages,
        "target_language": () if source is None else source.target_languages,
    }
    given = {name: code for name in known if (code := getattr(body, name)) is not None}
    for name, code in given.items():
        if code not in known[name]:
            raise InvalidInput(name, _explain_language(code, known[name]))
    return replace(options, **given) if given else options


def _explain_language(code: str, known: Sequence[str]) -> str:
    if not known:
        return "expected none for a model whose tokenizer has no languages, got some; omit the field"
    near = difflib.get_close_matches(code, known, n=3, cutoff=0.3) or list(known[:3])
    return f"expected one of the {len(known)} languages of the model, such as {', '.join(near)}, got {got(code)}"


def to_stopping(
    body: StoppingFields,
    spec: GenerationSpec,
    default_max_tokens: int | None,
    max_tokens: int | None = None,
    max_tokens_field: str = "max_tokens",
) -> Stopping:
    """Fill omitted fields. Raises InvalidInput. `default_max_tokens` None: up to the end of the model's context.

    `max_tokens`, `max_tokens_field`: value and name of a second field for the same limit; it goes before the first.
    """
    limit = body.max_tokens if max_tokens is None else max_tokens
    if spec.source is not None:
        default_max_tokens = spec.source.max_new_tokens or default_max_tokens
    max_tokens = default_max_tokens if limit is None else limit
    min_tokens = body.min_tokens or 0
    if spec.source is not None and "min_tokens" not in body.model_fields_set:
        # A request may state a lower maximum.
        min_tokens = min(spec.source.min_new_tokens, spec.max_context_tokens if max_tokens is None else max_tokens)
    highest = spec.max_context_tokens if max_tokens is None else max_tokens
    if min_tokens > highest:
        limit_name = "the model's context" if max_tokens is None else f"the value of {max_tokens_field}"
        raise InvalidInput("min_tokens", f"expected at most {highest}, {limit_name}, got {min_tokens}")
    stops = _as_strings(body.stop, "stop") if body.stop else ()
    token_ids = body.stop_token_ids or ()
    if token_ids:
        check_token_ids(token_ids, "stop_token_ids", spec.vocabulary_size)
    return Stopping(
        max_tokens=max_tokens,
        may_be_fewer=limit is None and max_tokens is not None,
        min_tokens=min_tokens,
        strings=stops,
        token_ids=frozenset(token_ids),
        ignore_eos=bool(body.ignore_eos),
    )


def num_top_logprobs(logprobs: bool | int | None) -> int | None:
    """Return the number of tokens reported at each position; true is 0, None is no report."""
    return (0 if logprobs else None) if isinstance(logprobs, bool) else logprobs


def to_conversation(messages: Sequence[ChatMessage]) -> Conversation:
    """Join the text parts of each message, and read its images. Raises InvalidInput."""
    turns = []
    for index, each in enumerate(messages):
        content, images = read_content(each.content, f"messages[{index}].content")
        turns.append(Message(each.role, content, images=images))
    return Conversation(tuple(turns))


def check_token_ids(token_ids: Sequence[int], field: str, vocabulary_size: int) -> None:
    """Raise InvalidInput for a token id outside the vocabulary."""
    if token_ids and max(token_ids) >= vocabulary_size:
        index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidInput(
            f"{field}[{index}]", f"expected a token id from 0 to {vocabulary_size - 1}, got {got(token_ids[index])}"
        )


def _as_strings(given: str | Sequence[str] | None, field: str) -> tuple[str, ...]:
    strings = (given,) if isinstance(given, str) else tuple(given or ())
    if sum(map(len, strings)) > MAX_ALL_STOP_CHARACTERS:
        raise InvalidInput(
            field,
            f"expected at most {MAX_ALL_STOP_CHARACTERS} characters in all strings, got {sum(map(len, strings))}; "
            "send fewer or shorter strings",
        )
    return strings


def _to_logit_bias(biases: Mapping[str, float], vocabulary_size: int) -> dict[int, float]:
    by_token_id = {int(name): bias for name, bias in biases.items()}
    if max(by_token_id) >= vocabulary_size:
        raise InvalidInput(
            "logit_bias",
            f'expected token ids from 0 to {vocabulary_size - 1} as keys, got "{max(by_token_id)}"',
        )
    return by_token_id
