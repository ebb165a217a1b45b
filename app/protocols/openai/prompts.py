"""What a text is to follow: a prompt as /v1/completions takes it, messages as /v1/chat/completions takes them."""

from typing import Any

from app.inference.generation import MOST_SEQUENCES
from app.protocols.generation_fields import read_messages
from app.protocols.json_body import describe_value
from app.protocols.openai.codec import Fields
from frameworks.errors import InvalidInput
from frameworks.generation.types import Conversation, GenerationSpec, Prompt

_NO_FUNCTIONS = "functions are not called here; say in the content what was called and what came of it"
_ONLY_TEXT = "this server reads nothing but text"
# What a message may hold besides role and content. An answer that is sent back has most of them, empty.
_REMEDIES = {
    "name": "chat templates know roles alone; put it into the content",
    "refusal": "put it into the content",
    "annotations": "leave it out",
    "audio": _ONLY_TEXT,
    "function_call": _NO_FUNCTIONS,
    "tool_calls": _NO_FUNCTIONS,
    "tool_call_id": _NO_FUNCTIONS,
}


def read_prompts(value: Any, vocabulary_size: int) -> tuple[Prompt, ...]:
    """A string, a list of strings, token ids, or a list of lists of them. Raises InvalidInput."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        given = "is missing" if value is None else f"is {describe_value(value)}"
        raise InvalidInput("prompt", f"{given}; wants a string, token ids, or a list of either")
    if not value:
        raise InvalidInput("prompt", "is an empty list; wants a string, token ids, or a list of either")
    kinds = set(map(type, value))
    if kinds == {int}:
        return (read_ids(value, "prompt", vocabulary_size),)
    if len(value) > MOST_SEQUENCES:
        raise InvalidInput(
            "prompt", f"has {len(value)} of them; a request takes at most {MOST_SEQUENCES}, send several"
        )
    if kinds == {str}:
        return tuple(value)
    if kinds == {list}:
        return tuple(read_ids(ids, f"prompt[{i}]", vocabulary_size) for i, ids in enumerate(value))
    first = type(value[0])
    at = 0 if first not in (int, str, list) else next(i for i, each in enumerate(value) if type(each) is not first)
    raise InvalidInput(
        f"prompt[{at}]", f"is {describe_value(value[at])}; wants strings alone, token ids alone, or lists of them"
    )


def read_chat(value: Any) -> Conversation:
    """Messages; OpenAI's `developer` is the `system` of chat templates. Raises InvalidInput, UnknownField."""
    if isinstance(value, list):
        value = [_plain(item, f"messages[{i}]") if isinstance(item, dict) else item for i, item in enumerate(value)]
    elif value is None:
        raise InvalidInput("messages", 'is missing; wants a list of messages like {"role": "user", "content": "…"}')
    return read_messages(value)


def read_ids(ids: list[Any], field: str, vocabulary_size: int) -> tuple[int, ...]:
    """Token ids of a vocabulary of this size. Raises InvalidInput."""
    if not ids:
        raise InvalidInput(field, "is an empty list; wants a token id at least")
    for at, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id < vocabulary_size:
            raise InvalidInput(
                f"{field}[{at}]", f"is {describe_value(token_id)}; wants a token id from 0 to {vocabulary_size - 1}"
            )
    return tuple(ids)


def check_has_template(spec: GenerationSpec, fields: Fields) -> None:
    """Raises InvalidInput for a model that messages cannot be put to."""
    if not spec.has_chat_template:
        raise InvalidInput(
            "messages",
            f'model "{fields.get("model")}" has no chat template; send a prompt to /v1/completions, '
            "or put a chat_template into its tokenizer_config.json",
        )


def _plain(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Role and content, of what OpenAI's clients send; where something else is said, it is refused."""
    said = {field: value for field, value in message.items() if value is not None or field == "content"}
    for field, remedy in _REMEDIES.items():
        if said.pop(field, []) != []:
            raise InvalidInput(f"{name}.{field}", f"is not served; {remedy}")
    match said.get("role"):
        case "developer":
            said["role"] = "system"
        case "tool" | "function" as role:
            raise InvalidInput(f"{name}.role", f'"{role}" is not served; {_NO_FUNCTIONS}')
    if isinstance(said.get("content"), list):
        for at, part in enumerate(said["content"]):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise InvalidInput(f"{name}.content[{at}]", f'"{kind[:40]}" is not served; {_ONLY_TEXT}')
    return said
