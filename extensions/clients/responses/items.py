"""Input items of /v1/responses: messages, function calls, their outputs, and reasoning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler

from app.protocols.shared.bodies import Body, Remedy, got, read_body
from app.protocols.shared.fields.generation import MAX_MESSAGES
from app.protocols.shared.fields.message_content import Content
from app.protocols.shared.fields.policy import EMPTY, FieldPolicy, Refusal
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Message, MessageCall

Label = Annotated[Any, Field(description="Accepted without effect.")]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_TEXT_ONLY = Remedy("the server reads text and images")
_TEXT_TYPES = frozenset({"input_text", "output_text"})
_PLAIN_FIELDS = frozenset({"type", "text", "annotations", "logprobs"})
# pydantic validates a list in one call, and no other thread runs meanwhile.
_FEW_PARTS = 64

_OMIT = "omit the field"
_DIRECT = {"type": "direct"}
# A response that a client sends back as items has some of these, empty.
_CALL = FieldPolicy(
    {
        "namespace": Refusal("tools have no namespaces: omit the field", ("",)),
        "caller": Refusal("only the model calls functions: omit the field", (_DIRECT,)),
        "async": Refusal(_OMIT, (False,)),
        "created_by": Refusal(_OMIT, ("",)),
    }
)
_REASONING = FieldPolicy(
    {"encrypted_content": Refusal("the server reads reasoning as text: send content, or omit the item", ("",))}
)
_IMAGE = FieldPolicy({"file_id": Refusal("no file is stored: send image_url")})


class InputText(Body):
    """Text of a message."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "input_text", "text": "…"}]})

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Label = None


class InputImage(Body):
    """An image of a message, as a data URL. No other URL is accepted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"type": "input_image", "image_url": "data:image/jpeg;base64,…"}]}
    )

    type: Literal["input_image"]
    image_url: str
    detail: Label = None
    prompt_cache_breakpoint: Label = None


class OutputText(Body):
    """Text of an earlier response."""

    type: Literal["output_text"]
    text: str
    annotations: Label = None
    logprobs: Label = None


class RefusalText(Body):
    """An earlier response in which a model refused to answer."""

    type: Literal["refusal"]
    refusal: str


class SummaryText(Body):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(Body):
    """Reasoning of an earlier response."""

    type: Literal["reasoning_text"]
    text: str


_Part = Annotated[InputText | InputImage | OutputText | RefusalText, Field(discriminator="type")]
_ResultPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class InputItem(Body):
    """One item of a conversation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "…"}]})

    id: Label = None
    status: Label = None


class MessageItem(InputItem):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[str | Annotated[list[_Part], Field(fail_fast=True)], _TEXT_ONLY]
    phase: Label = None


class FunctionCallItem(InputItem):
    """A function call of an earlier response."""

    type: Literal["function_call"]
    call_id: _Name
    name: _Name
    arguments: str = Field(description="A JSON object, as text.")


class FunctionOutputItem(InputItem):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: _Name
    output: Annotated[str | Annotated[list[_ResultPart], Field(fail_fast=True)], _TEXT_ONLY]


class ReasoningItem(InputItem):
    """The reasoning of an earlier response."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(fail_fast=True, description="Accepted without effect.")] | None = None
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None


_KINDS: dict[str, tuple[type[InputItem], FieldPolicy]] = {
    "message": (MessageItem, EMPTY),
    "function_call": (FunctionCallItem, _CALL),
    "function_call_output": (FunctionOutputItem, _CALL),
    "reasoning": (ReasoningItem, _REASONING),
}


class _AnyItem:
    """Show all kinds of items in OpenAPI. `_build_items` builds them; each is an instance of InputItem."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(kind.__pydantic_core_schema__) for kind, _ in _KINDS.values()]}


def _build_items(items: Any) -> Any:
    """Build each item of its class, one after another, so that other threads run between them. Raises InvalidInput.

    Anything but a list of objects is returned as it is.
    """
    if not isinstance(items, list):
        return items
    if len(items) > MAX_MESSAGES:
        raise InvalidInput("input", f"expected at most {MAX_MESSAGES} items, got {len(items)}; send fewer")
    return [_built(item, f"input[{index}].") if isinstance(item, dict) else item for index, item in enumerate(items)]


def _built(item: dict[str, Any], within: str) -> InputItem:
    item = {name: value for name, value in item.items() if value is not None}
    name = item.get("type", "message" if "role" in item else None)
    if name == "item_reference":
        raise InvalidInput(f"{within}type", f'expected an item, got "{name}"; no item is stored: send the item itself')
    if not isinstance(name, str) or name not in _KINDS:
        expected = " or ".join(f'"{each}"' for each in _KINDS)
        found = "nothing" if name is None else got(name)
        raise InvalidInput(
            f"{within}type", f"expected {expected}, got {found}; send text and the calls of functions only"
        )
    kind, policy = _KINDS[name]
    policy.apply(item, within)
    content = "output" if kind is FunctionOutputItem else "content"
    if kind is not ReasoningItem and content in item:
        item[content] = _without_files(_joined(item[content]), f"{within}{content}")
    return read_body(kind, item, within)


def _joined(content: Any) -> Any:
    """Join the parts of a long list of plain texts; leave anything else as it is."""
    if not isinstance(content, list) or len(content) <= _FEW_PARTS:
        return content
    are_plain = all(
        type(part) is dict
        and part.keys() <= _PLAIN_FIELDS
        and part.get("type") in _TEXT_TYPES
        and type(part.get("text")) is str
        for part in content
    )
    return "".join(part["text"] for part in content) if are_plain else content


def _without_files(content: Any, field: str) -> Any:
    """Remove an empty `file_id` of each image. Raises InvalidInput for any other one."""
    if not isinstance(content, list):
        return content
    parts = list(content)
    for index, part in enumerate(parts):
        if isinstance(part, dict) and part.get("type") == "input_image" and "file_id" in part:
            parts[index] = dict(part)
            _IMAGE.apply(parts[index], f"{field}[{index}].")
    return parts


InputItems = Annotated[
    list[Annotated[InputItem, _AnyItem()]],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    BeforeValidator(_build_items),
]


@dataclass(slots=True)
class _AssistantTurn:
    """A turn of the assistant, of which chat templates make one message."""

    reasoning: list[str] = field(default_factory=list)
    content: Content | None = None
    calls: list[MessageCall] = field(default_factory=list)

    @property
    def has_answer(self) -> bool:
        """Whether it has more than reasoning: further reasoning or text begins another turn."""
        return self.content is not None or bool(self.calls)

    def message(self) -> Message:
        content, reasoning = self.content or Content(), "".join(self.reasoning)
        return Message("assistant", content.text, tuple(self.calls), reasoning=reasoning, images=content.images)


def to_messages(items: Sequence[InputItem]) -> Iterator[Message]:
    """Yield the messages of the items. Reasoning, text and calls that follow each other are one message."""
    names: dict[str, str] = {}
    turn: _AssistantTurn | None = None
    for index, item in enumerate(items):
        is_call = isinstance(item, FunctionCallItem)
        is_of_turn = is_call or isinstance(item, ReasoningItem) or getattr(item, "role", "") == "assistant"
        if turn is not None and (not is_of_turn or (turn.has_answer and not is_call)):
            yield turn.message()
            turn = None
        if not is_of_turn:
            yield _single(item, names, f"input[{index}]")
            continue
        turn = turn or _AssistantTurn()
        if isinstance(item, ReasoningItem):
            turn.reasoning += [part.text for part in item.content or ()]
        elif isinstance(item, FunctionCallItem):
            turn.calls.append(MessageCall(item.call_id, item.name, item.arguments))
            names[item.call_id] = item.name
        elif isinstance(item, MessageItem):
            turn.content = _content_of(item.content, f"input[{index}].content")
    if turn is not None:
        yield turn.message()


def _single(item: InputItem, names: dict[str, str], field: str) -> Message:
    if isinstance(item, FunctionOutputItem):
        name, found = names.get(item.call_id, ""), _content_of(item.output, f"{field}.output")
        return Message("tool", found.text, tool_call_id=item.call_id, name=name, images=found.images)
    assert isinstance(item, MessageItem)
    found = _content_of(item.content, f"{field}.content")
    return Message("system" if item.role == "developer" else item.role, found.text, images=found.images)


def _content_of(content: str | Sequence[InputText | InputImage | OutputText | RefusalText], field: str) -> Content:
    """Return the texts and images of a content. Raises InvalidInput."""
    found = Content()
    if isinstance(content, str):
        found.add_text(content)
        return found
    for index, part in enumerate(content):
        if isinstance(part, InputImage):
            found.add_url(part.image_url, f"{field}[{index}].image_url")
        else:
            found.add_text(part.refusal if isinstance(part, RefusalText) else part.text)
    return found
