"""A turn of a chat, for every protocol: what a request needs of its model, and the parts of the model's text."""

from collections.abc import Mapping
from typing import Any

import orjson

from app.protocols.shared.fields.generation import ChatMessage
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from frameworks.core.errors import InvalidInput
from frameworks.generation.tools.events import Event, TextPart
from frameworks.generation.tools.parser import ResponseParser
from frameworks.generation.types import GenerateAnswer, GenerateRequest, GenerationSpec, PromptEnding
from frameworks.types import ModelSpec

# From this length on, parsing blocks the loop for about a millisecond.
_LONG_CHARACTERS = 8 * 1024
_MAX_VARIABLES_BYTES = 16 * 1024
_OWN_FIELD = "send it as a field of the body"
_OWN_TEMPLATE = "the model's own template is used: send a formatted prompt to /v1/completions"
_TEMPLATE_KWARGS = FieldPolicy(
    {
        "messages": Refusal("send the field messages of the body"),
        "tools": Refusal("send the field tools of the body"),
        "chat_template": Refusal(_OWN_TEMPLATE),
        "add_generation_prompt": Refusal(_OWN_FIELD, (True,)),
        "continue_final_message": Refusal(_OWN_FIELD, (False,)),
    }
)


def generation_of(spec: ModelSpec) -> GenerationSpec:
    """Return the generation spec of a model whose task is `generate`."""
    assert spec.generation is not None
    return spec.generation


def check_has_template(generation: GenerationSpec, model: str | None, field: str = "messages") -> None:
    """Raise InvalidInput for a model that cannot format messages.

    `model`: as the request names it. `field`: of the messages.
    """
    if not generation.has_chat_template:
        raise InvalidInput(
            field,
            f"expected a model with a chat template, got {quoted_name(model)}; send a prompt to /v1/completions, "
            "or add a chat_template to the model's tokenizer_config.json",
        )


def check_infills(generation: GenerationSpec, model: str | None) -> None:
    """Raise InvalidInput for a model that cannot write the text before a suffix. `model`: as the request names it."""
    if not generation.can_infill:
        raise InvalidInput(
            "suffix",
            f"expected a model whose tokenizer has fill-in-the-middle tokens, got {quoted_name(model)}; omit the "
            "field, the text is then continued",
        )


def quoted_name(model: str | None) -> str:
    """Return the name of a model as a request has it, for an error."""
    return "the only model" if model is None else f'"{model}"'


def ending_of(begins_response: bool | None, continues_last: bool | None, last: ChatMessage) -> PromptEnding:
    """Return where the prompt ends, by vLLM's add_generation_prompt and continue_final_message.

    `last`: the last message. Raises InvalidInput for both at once, and for a message that no text can continue.
    """
    if not continues_last:
        return "messages" if begins_response is False else "response"
    if begins_response:
        raise InvalidInput(
            "add_generation_prompt", "expected false with continue_final_message, got true; send one of them"
        )
    if last.role != "assistant" or not last.content or getattr(last, "tool_calls", None):
        given = "one without text" if last.role == "assistant" else f'one of the role "{last.role}"'
        raise InvalidInput(
            "messages",
            f'expected a last message of the role "assistant" with a text to continue, got {given}; omit '
            "continue_final_message",
        )
    return "last_message"


def effort_of(effort: str | None, generation: GenerationSpec) -> str | None:
    """Return the reasoning effort for the chat template; None for a template that reads none."""
    return effort if generation.has_reasoning_effort else None


def ignored_effort(effort: str | None, generation: GenerationSpec, field: str) -> tuple[str, ...]:
    """Return the field of a reasoning effort that the model's chat template does not read."""
    return () if effort is None or generation.has_reasoning_effort else (field,)


def variables_of(given: Mapping[str, Any] | None, generation: GenerationSpec) -> str:
    """Return the variables of `chat_template_kwargs` that the model's chat template reads: a JSON object, or empty.

    Raises InvalidInput for the server's own variables, and for values that are too long.
    """
    fields = dict(given or {})
    _TEMPLATE_KWARGS.apply(fields, "chat_template_kwargs.")
    read = {name: value for name, value in fields.items() if name in generation.template_variables}
    if not read:
        return ""
    try:
        written = orjson.dumps(read)
    except TypeError as error:
        raise InvalidInput("chat_template_kwargs", f"expected valid JSON, got an error: {error}; correct it") from None
    if len(written) > _MAX_VARIABLES_BYTES:
        raise InvalidInput(
            "chat_template_kwargs",
            f"expected at most {_MAX_VARIABLES_BYTES} bytes, got {len(written)}; put long texts into a message",
        )
    return written.decode()


def ignored_variables(given: Mapping[str, Any] | None, generation: GenerationSpec) -> tuple[str, ...]:
    """Return the fields of `chat_template_kwargs` that the model's chat template does not read."""
    names = (given or {}).keys() - generation.template_variables - _TEMPLATE_KWARGS.refusals.keys()
    return tuple(f"chat_template_kwargs.{name}" for name in sorted(names))


class TurnText:
    """The text of one choice as content, reasoning and tool calls. Used by one thread.

    Joined, the events of a text do not depend on its pieces.
    """

    def __init__(self, request: GenerateRequest, tool_names: frozenset[str], max_calls: int | None) -> None:
        """`tool_names`, `max_calls`: of the request's tools; as ResponseParser."""
        self.format = request.text_format
        self._parser = ResponseParser(self.format, tool_names, max_calls) if self.format.marks else None

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser is not None and self._parser.has_calls

    def push(self, text: str) -> list[Event]:
        """Return the events that some more text completes."""
        if self._parser is not None:
            return self._parser.push(text)
        return [TextPart("content", text)] if text else []

    def finish(self, finish_reason: str) -> list[Event]:
        """Return the last events. `finish_reason`: of the text, as FinishReason."""
        return [] if self._parser is None else self._parser.finish(is_cut=finish_reason == "length")


def is_long_to_parse(request: GenerateRequest, answer: GenerateAnswer) -> bool:
    """Return whether parsing the texts would block the loop for about a millisecond."""
    return bool(request.text_format.marks) and sum(len(each.text) for each in answer.choices) >= _LONG_CHARACTERS
