"""Tools of a request, for every protocol: their bounds, the choice among them, and what a model needs of them."""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from frameworks.core.errors import InvalidInput
from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.tools.definition import ToolSchema, ToolsDefinition
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import Constraint, GenerationSpec

MAX_TOOLS = 128
MAX_TOOL_BYTES = 64 * 1024
MAX_ALL_TOOLS_BYTES = 256 * 1024
MAX_TOOL_DEPTH = 32
"""Objects and lists within one another, in one tool."""

ToolMode = Literal["auto", "none", "required", "named"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_MISTRAL_ID_CHARACTERS = string.ascii_letters + string.digits
_MISTRAL_ID_SIZE = 9


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` None: it has none. `strict`: its arguments meet the schema."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`for_template`: the tools as JSON, or empty. `constraint`: of the text; None: free. `max_calls` None: any."""

    for_template: str
    constraint: Constraint | None
    text_format: TextFormat
    names: frozenset[str] = frozenset()
    max_calls: int | None = None


def check_tools_size(tools: Any) -> None:
    """Raise InvalidInput for too many tools, or for one that is too large or too deep. `tools`: before validation."""
    if not isinstance(tools, list):
        return
    if len(tools) > MAX_TOOLS:
        raise InvalidInput("tools", f"expected at most {MAX_TOOLS} tools, got {len(tools)}; send fewer")
    total = 0
    for index, tool in enumerate(tools):
        if _depth(tool) > MAX_TOOL_DEPTH:
            raise InvalidInput(
                f"tools[{index}]",
                f"expected at most {MAX_TOOL_DEPTH} objects and lists within one another, got more; simplify it",
            )
        try:
            size = len(orjson.dumps(tool))
        except TypeError as error:
            raise InvalidInput(f"tools[{index}]", f"expected valid JSON, got an error: {error}") from None
        if size > MAX_TOOL_BYTES:
            raise InvalidInput(f"tools[{index}]", f"expected at most {MAX_TOOL_BYTES} bytes, got {size}; shorten it")
        total += size
    if total > MAX_ALL_TOOLS_BYTES:
        raise InvalidInput(
            "tools", f"expected at most {MAX_ALL_TOOLS_BYTES} bytes in all tools, got {total}; send fewer"
        )


def use_tools(
    tools: Sequence[Tool],
    mode: ToolMode,
    chosen: str | None,
    is_parallel: bool,
    generation: GenerationSpec,
    content: Constraint | None,
) -> ToolUse:
    """Return what the tools mean for a text. Raises InvalidInput.

    `chosen`: the only function that may be called, if `mode` is `named`. `content`: the constraint of a text that is no
    call.
    """
    if not tools and mode in ("required", "named"):
        raise InvalidInput("tool_choice", "expected tools to choose from, got none; send tools or omit tool_choice")
    own = generation.text_format
    if not tools or mode == "none":
        content = None if content is None else replace(content, thinks=own.thinks)
        return ToolUse("", content, TextFormat(None, own.thinks))
    if own.tools is None:
        raise InvalidInput(
            "tools",
            "expected a model whose chat template shows how it calls tools, got one without; choose another model, or "
            "set tool_format in the model's entry",
        )
    _check_names(tools, chosen)
    is_forced = mode in ("required", "named")
    is_parallel = is_parallel and mode != "named"
    is_held = is_forced or content is not None or any(tool.strict for tool in tools)
    constraint = None
    if is_held:
        schemas = [
            ToolSchema(index, tool.name, _schema(tool, index) if is_forced or tool.strict else None)
            for index, tool in enumerate(tools)
            if chosen in (None, tool.name)
        ]
        schema = None if is_forced else _content_schema(content)
        definition = ToolsDefinition(own.tools, schemas, is_forced, is_parallel, own.thinks, schema)
        constraint = Constraint("tools", definition.to_json())
    names = frozenset(tool.name for tool in tools)
    return ToolUse(_for_template(tools), constraint, own, names, None if is_parallel else 1)


def new_call_id(tool_format: ToolFormat | None) -> str:
    """Return a new id of a tool call. The templates of Mistral refuse ids of another length than 9."""
    if tool_format in ("mistral", "mistral_args"):
        return "".join(secrets.choice(_MISTRAL_ID_CHARACTERS) for _ in range(_MISTRAL_ID_SIZE))
    return f"call_{secrets.token_hex(12)}"


def _check_names(tools: Sequence[Tool], chosen: str | None) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidInput(
                f"tools[{index}].function.name", f'expected different names, got "{tool.name}" twice; rename one'
            )
        names.add(tool.name)
    if chosen is not None and chosen not in names:
        raise InvalidInput(
            "tool_choice", f'expected the name of one of the tools, got "{chosen[:64]}"; send its tool too'
        )


def _schema(tool: Tool, index: int) -> dict[str, Any]:
    schema = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    kind = schema.get("type", "object")
    if kind != "object":
        raise InvalidInput(
            f"tools[{index}].function.parameters",
            f'expected a schema with "type": "object", got {orjson.dumps(kind).decode()[:64]}; arguments are an object',
        )
    return schema if "$ref" in schema else {**schema, "type": "object"}


def _content_schema(content: Constraint | None) -> dict[str, Any] | bool | None:
    if content is None:
        return None
    if content.kind == "json_object":
        return {"type": "object"}
    if content.kind == "json_schema":
        schema: dict[str, Any] | bool = orjson.loads(content.definition)
        return schema
    raise InvalidInput(
        "tools", f"expected no tools beside a {content.kind}, got some; send response_format, or no tools"
    )


def _for_template(tools: Sequence[Tool]) -> str:
    """Return the tools as chat templates know them, in OpenAI's form."""
    shown = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        shown.append({"type": "function", "function": function})
    return orjson.dumps(shown).decode()


def _depth(value: Any) -> int:
    """Return the depth of a JSON value, or one that is above the bound."""
    depth, level = 0, [value]
    while depth <= MAX_TOOL_DEPTH:
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        depth += 1
        if not level:
            break
    return depth
