"""Read the conversation and the tools of /v1/responses and /v1/responses/input_tokens."""

import re
from typing import Any

from app.protocols.openai.field_policy import RESPONSES_REASONING, RESPONSES_TEXT, RESPONSES_TOOL
from app.protocols.shared.chat_turns import check_has_template, effort_of, generation_of, ignored_effort
from app.protocols.shared.fields.constraints import JsonObjectFormat, json_schema_constraint
from app.protocols.shared.tools import Tool, ToolMode, ToolUse, check_tools_size, use_tools
from extensions.clients.responses.items import to_messages
from extensions.clients.responses.requests import ConversationBody, JsonSchemaFormat, NamedFunctionTool, TextOptions
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Constraint, Conversation, GenerationSpec, Message
from frameworks.types import ModelSpec

_TOOL_FIELD = re.compile(r"(tools\[\d+\])(?:\.function)?(\..*)?")
# Names of fields in shared code, and in this route.
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "constraint": "text.format.schema",
    "response_format": "text.format",
}


def check_fields(fields: dict[str, Any], spec: ModelSpec) -> tuple[str, ...]:
    """Refuse tools beyond the bounds and of other kinds, and options that would change the response.

    Returns the options that are ignored.
    """
    tools = fields.get("tools")
    check_tools_size(tools)
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            _check_tool(tool, f"tools[{index}].")
    ignored = RESPONSES_TEXT.apply_to(fields, "text") + RESPONSES_REASONING.apply_to(fields, "reasoning")
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and isinstance(kind := choice.get("type"), str) and kind != "function":
        remedy = "send only those tools" if kind == "allowed_tools" else "the server runs no tools of its own"
        raise InvalidInput("tool_choice.type", f'expected "function", got "{kind[:64]}"; {remedy}')
    return ignored


def _check_tool(tool: dict[str, Any], within: str) -> None:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        raise InvalidInput(
            f"{within}type",
            f'expected "function", got "{kind[:64]}"; the server runs no tools: offer it as a function of the client',
        )
    RESPONSES_TOOL.apply(tool, within)


def conversation_of(body: ConversationBody, use: ToolUse, generation: GenerationSpec) -> Conversation:
    """Return the conversation for the chat template. Raises InvalidInput for a model without one."""
    check_has_template(generation, body.model, "input")
    return Conversation(_messages_of(body), use.for_template, effort_of(_effort(body), generation))


def ignored_fields(body: ConversationBody, spec: ModelSpec) -> tuple[str, ...]:
    """Return the fields that have no effect on the model."""
    return ignored_effort(_effort(body), generation_of(spec), "reasoning.effort")


def _effort(body: ConversationBody) -> str | None:
    return body.reasoning.effort if body.reasoning else None


def _messages_of(body: ConversationBody) -> tuple[Message, ...]:
    instructions = [] if body.instructions is None else [Message("system", body.instructions)]
    if body.input is None:
        return tuple(instructions)
    if isinstance(body.input, str):
        return (*instructions, Message("user", body.input))
    return (*instructions, *to_messages(body.input))


def tool_use_of(body: ConversationBody, generation: GenerationSpec) -> ToolUse:
    """Return how the tools and the form of the text constrain it. Raises InvalidInput."""
    tools = [Tool(each.name, each.description, each.parameters, bool(each.strict)) for each in body.tools or ()]
    choice = body.tool_choice or "auto"
    chosen = choice.name if isinstance(choice, NamedFunctionTool) else None
    mode: ToolMode = "named" if isinstance(choice, NamedFunctionTool) else choice
    return use_tools(tools, mode, chosen, body.parallel_tool_calls is not False, generation, _constraint_of(body.text))


def _constraint_of(text: TextOptions | None) -> Constraint | None:
    if text is None or text.format is None:
        return None
    if isinstance(text.format, JsonSchemaFormat):
        return json_schema_constraint(text.format.schema_, "text.format.schema")
    return Constraint("json_object") if isinstance(text.format, JsonObjectFormat) else None


def rename_field(field: str) -> str:
    """Return the name of a field in this route."""
    if match := _TOOL_FIELD.fullmatch(field):
        return match[1] + (match[2] or ".parameters")
    return _NAMES.get(field, field)
