"""What a body says of the text that it asks for: sampling, stopping, choices, messages; whatever protocol it came by.

`fields` are a body's members in Python's own values. Null is as good as left out. What is wrong raises InvalidInput or
UnknownField, which names the field as the caller does, what came and what is wanted.
"""

from collections.abc import Mapping
from typing import Any

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

MOST_TOP_LOGPROBS = 20
MOST_CHOICES = 128
MOST_STOPS = 16
LONGEST_STOP = 1024
MOST_TOKENS_NAMED = 1024
"""In `logit_bias`, and in `stop_token_ids`."""
MOST_MESSAGES = 10_000

# As low as this nothing is left to chance; divided by less, logits would be infinite.
_LOWEST_TEMPERATURE = 1e-5
_HIGHEST_TEMPERATURE = 100.0
_LONGEST_ROLE = 64


def read_sampling(fields: Fields, spec: GenerationSpec, top_logprobs: int | None = None) -> Sampling:
    """SAMPLING_FIELDS; the defaults of some are the model's own. `top_logprobs`: see `read_top_logprobs`."""
    own = spec.sampling
    temperature = read_number(fields, "temperature", own.temperature, 0.0, _HIGHEST_TEMPERATURE)
    top_p = read_number(fields, "top_p", own.top_p, 0.0, 1.0)
    if not top_p:
        raise InvalidInput("top_p", "is 0; wants a number above 0 and at most 1 (for the likeliest token alone send "
                           '"temperature": 0)')  # fmt: skip
    return Sampling(
        repetition_penalty=read_number(fields, "repetition_penalty", own.repetition_penalty, 0.01, 100.0),
        frequency_penalty=read_number(fields, "frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=read_number(fields, "presence_penalty", 0.0, -2.0, 2.0),
        logit_bias=_read_logit_bias(fields, spec.vocabulary_size),
        temperature=temperature if temperature >= _LOWEST_TEMPERATURE else 0.0,
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
    return read_whole(fields, name, 0, MOST_TOP_LOGPROBS, ", or true")


def read_num_choices(fields: Fields, name: str = "n") -> int:
    """How many texts for each prompt."""
    return read_whole(fields, name, 1, MOST_CHOICES) or 1


def read_messages(value: Any, name: str = "messages") -> Conversation:
    """A list of `{"role", "content"}`; a content is a string, or a list of `{"type": "text", "text"}`."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_MESSAGES:
        given = f"has {len(value)}" if isinstance(value, list) else f"is {describe_type(value)}"
        raise InvalidInput(
            name, f'{given}; wants a list of 1 to {MOST_MESSAGES} messages like {{"role": "user", "content": "…"}}'
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
    if not isinstance(value, dict) or len(value) > MOST_TOKENS_NAMED:
        given = f"has {len(value)} members" if isinstance(value, dict) else f"is {describe_type(value)}"
        raise InvalidInput(
            "logit_bias", f'{given}; wants an object of at most {MOST_TOKENS_NAMED} biases like {{"17": -100}}'
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
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        given = f"has {len(stops)}" if isinstance(stops, list) else f"is {describe_value(stops)}"
        raise InvalidInput("stop", f"{given}; wants a string or a list of at most {MOST_STOPS} strings")
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= LONGEST_STOP:
            given = f"has {len(stop)} characters" if isinstance(stop, str) else f"is {describe_value(stop)}"
            field = "stop" if stops is not value else f"stop[{i}]"
            raise InvalidInput(field, f"{given}; wants a string of 1 to {LONGEST_STOP} characters")
    return tuple(stops)


def _read_stop_token_ids(fields: Fields, vocabulary_size: int) -> frozenset[int]:
    value = fields.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or len(value) > MOST_TOKENS_NAMED:
        given = f"has {len(value)}" if isinstance(value, list) else f"is {describe_value(value)}"
        raise InvalidInput("stop_token_ids", f"{given}; wants a list of at most {MOST_TOKENS_NAMED} token ids")
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
    if not isinstance(role, str) or not 0 < len(role) <= _LONGEST_ROLE:
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
