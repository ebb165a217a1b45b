"""Fields of the OpenAI API that the server refuses, with the remedy of each.

A refused field may have a value that changes nothing, as `"tools": []`. Fields of no table and no body are unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.bodies import got
from app.protocols.generation_fields import build_messages
from frameworks.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused. `neutral`: the values that are accepted besides null."""

    remedy: str
    neutral: tuple[Any, ...] = ()

    def accepts(self, value: Any) -> bool:
        # Python takes 0 for False; JSON does not.
        return value is None or any(type(value) is type(each) and value == each for each in self.neutral)

    def error(self, field: str, value: Any) -> InvalidInput:
        expected = " or ".join(orjson.dumps(each).decode() for each in self.neutral or (None,))
        found = orjson.dumps(value).decode() if isinstance(value, bool) else got(value)
        return InvalidInput(field, f"expected {expected}, got {found}; {self.remedy}")


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """The refused fields of one route, by name."""

    refusals: Mapping[str, Refusal]

    def apply(self, fields: dict[str, Any], within: str = "") -> None:
        """Remove the refused fields from `fields`. Raises InvalidInput for one that would change the response.

        `within`: the path of the object, as `messages[0].`.
        """
        if self.refusals.keys().isdisjoint(fields):
            return
        for name, refusal in self.refusals.items():
            if name in fields and not refusal.accepts(value := fields.pop(name)):
                raise refusal.error(within + name, value)


_NO_FUNCTIONS = "the server calls no functions: describe them in a message and request JSON by response_format"
_NO_CALLS = "the server calls no functions: put the call and its result into the content"
_ONLY_TEXT = "the server generates only text: omit the field"
_ONLY_TEXT_READ = "the server reads only text: omit the field"
_CACHE = "common prefixes of prompts are cached automatically: omit the field"
_IN_MESSAGE = "state it in a message, or limit the text by max_completion_tokens"
_OWN_TURN = "the model always answers in a new turn: omit the field"

# Of vLLM's own fields those that its users send most.
_VLLM = {
    "skip_special_tokens": Refusal("special tokens are never part of a text: omit the field", (True,)),
    "include_stop_str_in_output": Refusal(
        "a text ends before its stop string: omit the field and append the string", (False,)
    ),
    "use_beam_search": Refusal("texts are sampled, or greedy with temperature 0: omit the field", (False,)),
}
_NEW_TURN = {
    "add_generation_prompt": Refusal(_OWN_TURN, (True,)),
    "continue_final_message": Refusal(_OWN_TURN, (False,)),
}

COMPLETIONS = FieldPolicy(
    {
        **_VLLM,
        "echo": Refusal("the prompt is not repeated: put it before the text", (False,)),
        "suffix": Refusal("a text is continued, not filled in: omit the field", ("",)),
        "best_of": Refusal("texts are not ranked: request all of them by n, and logprobs to rank them", (1,)),
    }
)
CHAT = FieldPolicy(
    {
        **_VLLM,
        **_NEW_TURN,
        "tools": Refusal(_NO_FUNCTIONS, ([],)),
        "tool_choice": Refusal(_NO_FUNCTIONS, ("none", "auto")),
        "parallel_tool_calls": Refusal(_NO_FUNCTIONS, (True, False)),
        "functions": Refusal(_NO_FUNCTIONS, ([],)),
        "function_call": Refusal(_NO_FUNCTIONS, ("none", "auto")),
        "audio": Refusal(_ONLY_TEXT),
        "modalities": Refusal(_ONLY_TEXT, (["text"],)),
        "reasoning_effort": Refusal(_IN_MESSAGE, ("none",)),
        "verbosity": Refusal(_IN_MESSAGE, ("medium",)),
        "prediction": Refusal("a predicted text saves no time here: omit the field, the response is the same"),
        "web_search_options": Refusal("the server searches nothing: put the facts into a message"),
        "moderation": Refusal("the server does not moderate texts: omit the field"),
        "store": Refusal("the server stores no responses: omit the field", (False,)),
        "service_tier": Refusal(
            "there is one tier: send priority (1 to 9) for a position in the queue", ("auto", "default")
        ),
        "prompt_cache_retention": Refusal(_CACHE, ("in_memory",)),
        "prompt_cache_options": Refusal(_CACHE),
        "echo": Refusal("the last message is not repeated: put it before the text", (False,)),
        "chat_template": Refusal("the model's own template is used: send a formatted prompt to /v1/completions"),
        "chat_template_kwargs": Refusal(
            "the model's template receives only messages: send a formatted prompt to /v1/completions"
        ),
    }
)
RERANK = FieldPolicy(
    {
        "max_chunks_per_doc": Refusal(
            "a document is scored whole, truncated at the model's limit: send its parts as documents"
        ),
        "rank_fields": Refusal("a document is one text: put the fields into it"),
    }
)
TOKENIZE = FieldPolicy(_NEW_TURN)
EMPTY = FieldPolicy({})
"""Refuses nothing."""

# A response that a client sends back as a message has most of these, empty.
_MESSAGE = FieldPolicy(
    {
        "name": Refusal("chat templates know only roles: put the name into the content", ([],)),
        "refusal": Refusal("put it into the content", ([],)),
        "annotations": Refusal("omit the field", ([],)),
        "audio": Refusal(_ONLY_TEXT_READ, ([],)),
        "function_call": Refusal(_NO_CALLS, ([],)),
        "tool_calls": Refusal(_NO_CALLS, ([],)),
        "tool_call_id": Refusal(_NO_CALLS, ([],)),
    }
)
_MESSAGE_FIELDS = {"role", "content"}
_REFUSED_ROLES = ("tool", "function")


def plain_messages(messages: Any) -> Any:
    """Reduce OpenAI's messages to role and content; `developer` becomes `system`. Raises InvalidInput.

    Anything but a list of objects is returned as it is.
    """
    if not isinstance(messages, list):
        return messages
    return build_messages(
        [_plain(message, index) if isinstance(message, dict) else message for index, message in enumerate(messages)]
    )


def _plain(message: dict[str, Any], index: int) -> dict[str, Any]:
    if message.keys() != _MESSAGE_FIELDS:
        message = {name: value for name, value in message.items() if value is not None or name == "content"}
        _MESSAGE.apply(message, f"messages[{index}].")
    role = message.get("role")
    if role == "developer":
        return {**message, "role": "system"}
    if role in _REFUSED_ROLES:
        raise InvalidInput(
            f"messages[{index}].role", f'expected "system", "user" or "assistant", got "{role}"; {_NO_CALLS}'
        )
    return message
