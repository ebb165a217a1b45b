"""What a body says of the text that it asks for: sampling, stopping, choices, messages; whatever protocol it came by.

`fields` are a body's members in Python's own values. Null is as good as left out. What is wrong raises InvalidInput or
UnknownField, which names the field as the caller does, what came and what is wanted.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.bodies import MAX_INT32, Body, Remedy, got
from app.protocols.json_body import describe_type, describe_value
from frameworks.errors import InvalidInput, UnknownField
from frameworks.generation.types import Conversation, GenerationSpec, Message, Sampling, Stopping

Fields = Mapping[str, Any]

SAMPLING_FIELDS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed"),
    }
)
"""What `read_sampling` reads."""

STOPPING_FIELDS = frozenset({"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos"})
"""What `read_stopping` reads, where `max_tokens` has no other name."""

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_NAMED_TOKENS = 1024
"""In `logit_bias`, and in `stop_token_ids`."""
MAX_MESSAGES = 10_000

# As low as this nothing is left to chance; divided by less, logits would be infinite.
_MIN_TEMPERATURE = 1e-5
_MAX_TEMPERATURE = 100.0
_MAX_ROLE_CHARACTERS = 64


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


class SamplingFields(Body):
    """How the next token is chosen. Build Sampling from it by `to_sampling`."""

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    frequency_penalty: FrequencyPenalty = 0
    presence_penalty: PresencePenalty = 0
    logit_bias: LogitBias = None
    seed: Seed = None


class StoppingFields(Body):
    """When a text ends. Build Stopping from it by `to_stopping`."""

    max_tokens: MaxTokens = None
    min_tokens: MinTokens = 0
    stop: Stop = None
    stop_token_ids: StopTokenIds = None
    ignore_eos: IgnoreEos = False


class TextPart(Body):
    """A part of a message's content."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "text", "text": "…"}]})

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn of a conversation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "…"}]})

    role: str = Field(min_length=1, max_length=_MAX_ROLE_CHARACTERS, description="As in the model's chat template.")
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def to_sampling(body: SamplingFields, spec: GenerationSpec, top_logprobs: int | None = None) -> Sampling:
    """Fill omitted fields with the defaults of the model. Raises InvalidInput for a token outside its vocabulary.

    `top_logprobs`: number of alternatives reported at each position; None: no log probabilities.
    """
    own = spec.sampling
    temperature = own.temperature if body.temperature is None else body.temperature
    top_k = own.top_k if body.top_k is None else body.top_k
    return Sampling(
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
    )


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
    max_tokens = default_max_tokens if limit is None else limit
    min_tokens = body.min_tokens or 0
    highest = spec.max_context_tokens if max_tokens is None else max_tokens
    if min_tokens > highest:
        limit_name = "the model's context" if max_tokens is None else f"the value of {max_tokens_field}"
        raise InvalidInput("min_tokens", f"expected at most {highest}, {limit_name}, got {min_tokens}")
    token_ids = body.stop_token_ids or ()
    check_token_ids(token_ids, "stop_token_ids", spec.vocabulary_size)
    return Stopping(
        max_tokens=max_tokens,
        may_be_fewer=limit is None and max_tokens is not None,
        min_tokens=min_tokens,
        strings=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        token_ids=frozenset(token_ids),
        ignore_eos=bool(body.ignore_eos),
    )


def num_top_logprobs(logprobs: bool | int | None) -> int | None:
    """Return the number of tokens reported at each position; true is 0, None is no report."""
    return (0 if logprobs else None) if isinstance(logprobs, bool) else logprobs


def to_conversation(messages: Sequence[ChatMessage]) -> Conversation:
    """Join the text parts of each message."""
    return Conversation(
        tuple(
            Message(each.role, each.content if isinstance(each.content, str) else "".join(p.text for p in each.content))
            for each in messages
        )
    )


def check_token_ids(token_ids: Sequence[int], field: str, vocabulary_size: int) -> None:
    """Raise InvalidInput for a token id outside the vocabulary."""
    if token_ids and max(token_ids) >= vocabulary_size:
        index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidInput(
            f"{field}[{index}]", f"expected a token id from 0 to {vocabulary_size - 1}, got {got(token_ids[index])}"
        )


def _to_logit_bias(biases: Mapping[str, float], vocabulary_size: int) -> dict[int, float]:
    by_token_id = {int(name): bias for name, bias in biases.items()}
    if max(by_token_id) >= vocabulary_size:
        raise InvalidInput(
            "logit_bias",
            f'expected token ids from 0 to {vocabulary_size - 1} as keys, got "{max(by_token_id)}"',
        )
    return by_token_id


def read_sampling(fields: Fields, spec: GenerationSpec, top_logprobs: int | None = None) -> Sampling:
    """SAMPLING_FIELDS; the defaults of some are the model's own. `top_logprobs`: see `read_top_logprobs`."""
    own = spec.sampling
    temperature = read_number(fields, "temperature", own.temperature, 0.0, _MAX_TEMPERATURE)
    top_p = read_number(fields, "top_p", own.top_p, 0.0, 1.0)
    if not top_p:
        raise InvalidInput("top_p", "is 0; wants a number above 0 and at most 1 (for the likeliest token alone send "
                           '"temperature": 0)')  # fmt: skip
    return Sampling(
        repetition_penalty=read_number(fields, "repetition_penalty", own.repetition_penalty, 0.01, 100.0),
        frequency_penalty=read_number(fields, "frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=read_number(fields, "presence_penalty", 0.0, -2.0, 2.0),
        logit_bias=_read_logit_bias(fields, spec.vocabulary_size),
        temperature=temperature if temperature >= _MIN_TEMPERATURE else 0.0,
        top_k=_read_top_k(fields, own.top_k),
        top_p=top_p,
        min_p=read_number(fields, "min_p", own.min_p, 0.0, 1.0),
        seed=read_whole(fields, "seed", 0, 2**63 - 1),
        top_logprobs=top_logprobs,
    )


def read_stopping(
    fields: Fields, spec: GenerationSpec, default_max_tokens: int | None, max_tokens_field: str = "max_tokens"
) -> Stopping:
    """STOPPING_FIELDS. `default_max_tokens` None: to the end of the model's context, which ends every text.

    `max_tokens_field`: what the caller calls max_tokens.
    """
    asked = read_whole(fields, max_tokens_field, 1, 2**31 - 1)
    max_tokens = default_max_tokens if asked is None else asked
    min_tokens = read_whole(fields, "min_tokens", 0, 2**31 - 1) or 0
    longest = spec.max_context_tokens if max_tokens is None else max_tokens
    if min_tokens > longest:
        raise InvalidInput("min_tokens", f"is {min_tokens}, and {max_tokens_field} is {longest}; send no more than it")
    return Stopping(
        max_tokens=max_tokens,
        may_be_fewer=asked is None and max_tokens is not None,
        min_tokens=min_tokens,
        strings=_read_stops(fields),
        token_ids=_read_stop_token_ids(fields, spec.vocabulary_size),
        ignore_eos=read_flag(fields, "ignore_eos"),
    )


def read_top_logprobs(fields: Fields, name: str = "logprobs") -> int | None:
    """How many alternatives of each token are told with its log probability: 0 to 20; true is 0, None: nothing is."""
    value = fields.get(name)
    if isinstance(value, bool):
        return 0 if value else None
    return read_whole(fields, name, 0, MAX_TOP_LOGPROBS, ", or true")


def read_num_choices(fields: Fields, name: str = "n") -> int:
    """How many texts for each prompt."""
    return read_whole(fields, name, 1, MAX_CHOICES) or 1


def read_messages(value: Any, name: str = "messages") -> Conversation:
    """A list of `{"role", "content"}`; a content is a string, or a list of `{"type": "text", "text"}`."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        given = f"has {len(value)}" if isinstance(value, list) else f"is {describe_type(value)}"
        raise InvalidInput(
            name, f'{given}; wants a list of 1 to {MAX_MESSAGES} messages like {{"role": "user", "content": "…"}}'
        )
    return Conversation(tuple(_read_message(item, f"{name}[{i}]") for i, item in enumerate(value)))


def read_number(fields: Fields, name: str, default: float, lowest: float, highest: float) -> float:
    """A number within these bounds."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not lowest <= value <= highest:
        raise InvalidInput(name, f"is {describe_value(value)}; wants a number from {lowest:g} to {highest:g}")
    return float(value)


def read_whole(fields: Fields, name: str, lowest: int, highest: int, otherwise: str = "") -> int | None:
    """A whole number within these bounds; None where it is left out. `otherwise`: what else the field takes."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidInput(
            name, f"is {describe_value(value)}; wants a whole number from {lowest} to {highest}{otherwise}"
        )
    return value


def read_flag(fields: Fields, name: str) -> bool:
    """False where it is left out."""
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InvalidInput(name, f"is {describe_value(value)}; wants true or false")


def _read_top_k(fields: Fields, default: int | None) -> int | None:
    """0 and -1 are what others say for all."""
    if fields.get("top_k") is None:
        return default
    top_k = read_whole(fields, "top_k", -1, 2**31 - 1, " (0 or -1: all)")
    return top_k if top_k is not None and top_k > 0 else None


def _read_logit_bias(fields: Fields, vocabulary_size: int) -> dict[int, float]:
    value = fields.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_NAMED_TOKENS:
        given = f"has {len(value)} members" if isinstance(value, dict) else f"is {describe_type(value)}"
        raise InvalidInput(
            "logit_bias", f'{given}; wants an object of at most {MAX_NAMED_TOKENS} biases like {{"17": -100}}'
        )
    biases: dict[int, float] = {}
    for name in value:
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocabulary_size):
            raise InvalidInput(
                "logit_bias", f'has the key "{name[:40]}"; wants token ids from 0 to {vocabulary_size - 1}'
            )
        bias = read_number({f"logit_bias.{name}": value[name]}, f"logit_bias.{name}", 0.0, -100.0, 100.0)
        biases[int(name)] = bias
    return biases


def _read_stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        given = f"has {len(stops)}" if isinstance(stops, list) else f"is {describe_value(stops)}"
        raise InvalidInput("stop", f"{given}; wants a string or a list of at most {MAX_STOPS} strings")
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            given = f"has {len(stop)} characters" if isinstance(stop, str) else f"is {describe_value(stop)}"
            field = "stop" if stops is not value else f"stop[{i}]"
            raise InvalidInput(field, f"{given}; wants a string of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def _read_stop_token_ids(fields: Fields, vocabulary_size: int) -> frozenset[int]:
    value = fields.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or len(value) > MAX_NAMED_TOKENS:
        given = f"has {len(value)}" if isinstance(value, list) else f"is {describe_value(value)}"
        raise InvalidInput("stop_token_ids", f"{given}; wants a list of at most {MAX_NAMED_TOKENS} token ids")
    for i, token_id in enumerate(value):
        field = f"stop_token_ids[{i}]"
        if read_whole({field: token_id}, field, 0, vocabulary_size - 1) is None:
            raise InvalidInput(field, "is null; wants a token id")
    return frozenset(value)


def _read_message(item: Any, name: str) -> Message:
    if not isinstance(item, dict):
        raise InvalidInput(name, f'is {describe_type(item)}; wants an object like {{"role": "user", "content": "…"}}')
    for field in item:
        if field not in ("role", "content"):
            raise UnknownField.among(field[:200], ("role", "content"), f"{name}.")
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or not 0 < len(role) <= _MAX_ROLE_CHARACTERS:
        raise InvalidInput(f"{name}.role", 'wants a string like "system", "user" or "assistant"')
    if isinstance(content, list):
        content = "".join(_read_part(part, f"{name}.content[{i}]") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidInput(f"{name}.content", f"is {describe_type(content)}; wants a string")
    return Message(role, content)


def _read_part(part: Any, name: str) -> str:
    """The text of one part of a message's content."""
    if isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text":
        text = part["text"]
        if isinstance(text, str):
            return text
    raise InvalidInput(name, 'wants {"type": "text", "text": "…"}; this server reads nothing but text')
