"""The tools of a request, as the definition of a constraint: JSON between the protocol and the model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frameworks.core.settings.entries import ToolFormat


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that may be called. `index`: in the request. `schema` None: any JSON object."""

    index: int
    name: str
    schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ToolsDefinition:
    """Describe the texts that a request with tools allows.

    `is_forced`: the text is one call or, if `is_parallel`, several. Otherwise it is content with calls. `content`: the
    JSON schema of a content, which then replaces all calls; None: any text. `thinks`: the text may begin with thinking.
    """

    tools_format: ToolFormat
    tools: Sequence[ToolSchema]
    is_forced: bool
    is_parallel: bool = True
    thinks: bool = False
    content: dict[str, Any] | bool | None = None

    def to_json(self) -> str:
        """Return the definition of a Constraint."""
        tools = [[tool.index, tool.name, tool.schema] for tool in self.tools]
        fields = [self.tools_format, tools, self.is_forced, self.is_parallel, self.thinks, self.content]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, definition: str) -> "ToolsDefinition":
        """Return what `to_json` wrote."""
        tools_format, tools, is_forced, is_parallel, thinks, content = json.loads(definition)
        schemas = [ToolSchema(index, name, schema) for index, name, schema in tools]
        return cls(tools_format, schemas, is_forced, is_parallel, thinks, content)
