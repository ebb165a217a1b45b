"""The field `tools` of a body: its bounds, its values, and its name in errors."""

from collections.abc import Sequence
from typing import Any

from app.protocols.openai.requests import ToolField
from app.protocols.shared.tools import Tool, check_tools_size
from frameworks.types import ModelSpec


def check_tools(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Raise InvalidInput for tools beyond the bounds, before they are validated."""
    check_tools_size(fields.get("tools"))


def tools_of(fields: Sequence[ToolField] | None) -> list[Tool]:
    """Return the tools of a validated body."""
    return [
        Tool(each.function.name, each.function.description, each.function.parameters, bool(each.function.strict))
        for each in fields or ()
    ]


def rename_tool(field: str) -> str:
    """Name the schema of a tool, which the pipeline knows as `tools[3]`."""
    return f"{field}.function.parameters" if field.startswith("tools[") and field.endswith("]") else field
