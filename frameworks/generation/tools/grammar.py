"""Write the grammar of a text with tool calls, in the language of llguidance (a dialect of Lark)."""

import json
import re
from collections.abc import Callable
from typing import Any

from frameworks.generation.tools.definition import ToolSchema, ToolsDefinition
from frameworks.generation.tools.formats import ARGS, END_OF_THINKING, PYTHON_TAG, THINK, TOOL_CALLS

MAX_CALLS = 64
"""Calls of a forced response."""

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Keywords of a schema whose properties can be written as arguments of Python.
_NAMED_SCHEMAS = ("$defs", "definitions")
_PLAIN_KEYWORDS = {"type", "properties", "required", "additionalProperties", "description", "title", "$schema"}
_ANY_TEXT = r"/(.|\n)*/"
_COMMA = '", "'


class ToolSchemaError(Exception):
    """The format has no grammar for the schema of a tool."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index
        self.message = message


def grammar_of(
    definition: ToolsDefinition, mark: Callable[[str], str | None], whitespace: str, after_opening: bool = False
) -> str:
    """Return the grammar. Raises ToolSchemaError.

    `mark`: returns the special token of a mark as `<[7]>`; None for a mark that is text. `whitespace`: a pattern of the
    white space between the tokens of JSON. `after_opening`: the prompt ends with `<think>`.
    """
    return _Grammar(definition, mark, whitespace).write(after_opening)


def after_thinking(content: str, mark: Callable[[str], str | None], after_opening: bool) -> str:
    """Return the grammar of a text whose thinking precedes its content. `mark`, `after_opening`: as of `grammar_of`.

    `content`: the grammar of the content, one rule `start`. The model may leave its thinking out, unless the prompt has
    begun it.
    """
    rules = [
        f"start: {'thinking' if after_opening else '[thinking]'} content",
        "content:" + content.removeprefix("start:"),
        *_thinking_rules(mark, after_opening),
    ]
    return "\n".join(["%llguidance {}", *rules, f"TEXT: {_ANY_TEXT}", ""])


def _thinking_rules(mark: Callable[[str], str | None], after_opening: bool) -> list[str]:
    """Return the rule `thinking`, with those that it names."""
    opening = "" if after_opening else f"{mark(THINK) or _quoted(THINK)} "
    own = f"thinking: {opening}thought [SPACE]\nSPACE: /[ \\n]{{1,4}}/"
    return [own, *_rules_up_to("thought", END_OF_THINKING, mark)]


def _rules_up_to(rule: str, end: str, mark: Callable[[str], str | None]) -> list[str]:
    """Return a rule for any text up to a mark: its token, or the characters of its name."""
    token = mark(end)
    # A lazy rule ends with the first occurrence.
    return [f"{rule}: {f'TEXT {token} | ' if token else ''}{rule}_text", f"{rule}_text[lazy]: TEXT {_quoted(end)}"]


class _Grammar:
    """The rules of one grammar."""

    def __init__(self, definition: ToolsDefinition, mark: Callable[[str], str | None], whitespace: str) -> None:
        self._definition = definition
        self._mark = mark
        self._whitespace = whitespace
        self._rules: list[str] = []

    def write(self, after_opening: bool) -> str:
        definition = self._definition
        tools = list(definition.tools)
        match definition.tools_format:
            case "hermes":
                body = self._alternatives("call", [self._object(tool, "arguments") for tool in tools])
                start, call = "<tool_call>", f'"\\n" {body} "\\n" {self._literal("</tool_call>")}'
                calls = self._repeated(f"{self._literal(start)} {call}", '"\\n"')
            case "llama3_json":
                body = self._alternatives("call", [self._object(tool, "parameters") for tool in tools])
                start, call = PYTHON_TAG, self._repeated(body, '"; "')
                calls = call if definition.is_forced else f"[{self._literal(PYTHON_TAG)}] {call}"
            case "mistral":
                body = self._alternatives("call", [self._object(tool, "arguments") for tool in tools])
                start, call = TOOL_CALLS, f'[" "] "[" {self._repeated(body, _COMMA)} "]"'
                calls = f"{self._literal(start)} {call}"
            case "mistral_args":
                args = self._literal(ARGS)
                bodies = [f'"{tool.name}" {args} {self._json(tool.schema or _ANY_OBJECT)}' for tool in tools]
                start, call = TOOL_CALLS, self._alternatives("call", bodies)
                calls = self._repeated(f"{self._literal(start)} {call}", "")
            case "pythonic":
                # The beginning is one string: the text that is no call ends within it.
                named = {tool.name: self._python_arguments(tool) for tool in tools}
                first = self._alternatives("call", [f'"[{name}(" {body} ")"' for name, body in named.items()])
                later = self._alternatives("later", [f'", {name}(" {body} ")"' for name, body in named.items()])
                start, call = "", f"{first} {later}{{0,{MAX_CALLS - 1}}}" if definition.is_parallel else first
                calls = f'{call} "]"'
        self._rules.append(f"calls: {calls}")
        self._add_start(start, call, after_opening)
        return "\n".join(["%llguidance {}", *self._rules, f"TEXT: {_ANY_TEXT}", ""])

    def _add_start(self, start: str, call: str, after_opening: bool) -> None:
        definition = self._definition
        thinking = ""
        if definition.thinks:
            thinking = "thinking " if after_opening else "[thinking] "
            self._rules += _thinking_rules(self._mark, after_opening)
        if definition.is_forced:
            self._rules.append(f"start: {thinking}calls")
        elif definition.content is not None:
            self._rules.append(f"start: {thinking}(calls | content)\ncontent: {self._json(definition.content)}")
        elif definition.tools_format in ("llama3_json", "pythonic"):
            self._rules.append(f"start: {thinking}(calls | OTHER)\nOTHER: {self._other_text()}")
        else:
            times = "*" if definition.is_parallel else "?"
            tokens = " | ".join(filter(None, map(self._mark, (THINK, END_OF_THINKING)))) if definition.thinks else ""
            before = f"(TEXT ({tokens}))* " if tokens else ""
            self._rules.append(f"start: tagged{times} {before}TEXT\ntagged: {before}begin {call}")
            self._rules += _rules_up_to("begin", start, self._mark)

    def _other_text(self) -> str:
        """Return a pattern of the texts that do not begin like a call without a mark."""
        names = "|".join(re.escape(tool.name) for tool in self._definition.tools)
        if self._definition.tools_format == "pythonic":
            begin = rf"\s*\[\s*({names})\s*\("
        else:
            begin = rf'\s*\{{\s*"name"\s*:\s*"({names})"'
        return f"{_ANY_TEXT} & ~/{begin}(.|\\n)*/"

    def _repeated(self, call: str, separator: str) -> str:
        return f"{call} ({separator} {call}){{0,{MAX_CALLS - 1}}}" if self._definition.is_parallel else call

    def _alternatives(self, rule: str, bodies: list[str]) -> str:
        self._rules.append(f"{rule}: " + "\n  | ".join(bodies))
        return rule

    def _object(self, tool: ToolSchema, arguments: str) -> str:
        head = json.dumps({"name": tool.name})[:-1] + f', "{arguments}": '
        return f'{_quoted(head)} {self._json(tool.schema or _ANY_OBJECT)} "}}"'

    def _literal(self, mark: str) -> str:
        return self._mark(mark) or _quoted(mark)

    def _json(self, schema: dict[str, Any] | bool) -> str:
        whole: Any = {"allOf": [schema]} if isinstance(schema, bool) else schema
        rule = f"json_{len(self._rules)}"
        options = {"whitespace_pattern": self._whitespace}
        self._rules.append(f"{rule}: %json {json.dumps({**whole, 'x-guidance': options})}")
        return rule

    def _python_arguments(self, tool: ToolSchema) -> str:
        """Return `key=value, …`. The values are JSON, which the parser reads as well as Python."""
        schema = tool.schema or {}
        properties = _of_type(dict, schema.get("properties"))
        required = _of_type(list, schema.get("required"))
        unknown = [
            *(schema.keys() - _PLAIN_KEYWORDS - set(_NAMED_SCHEMAS)),
            *(set(map(str, required)) - properties.keys()),
        ]
        unknown += [name for name in properties if not _IDENTIFIER.fullmatch(name)]
        if unknown:
            raise ToolSchemaError(
                tool.index,
                f"expected properties that Python can name as arguments, got {json.dumps(str(unknown[0])[:64])}; "
                "simplify it",
            )
        shared: dict[str, Any] = {key: schema[key] for key in _NAMED_SCHEMAS if key in schema}
        first, rest = '""', '""'
        for name, own in reversed(properties.items()):
            value = self._json({**own, **shared} if isinstance(own, dict) else own)
            following = self._rule(rest)
            with_value, later = f'"{name}=" {value} {following}', f'", {name}=" {value}'
            if name in required:
                first, rest = with_value, f"{later} {following}"
            else:
                first, rest = f"{with_value} | {self._rule(first)}", f"[{later}] {following}"
        return self._rule(first)

    def _rule(self, body: str) -> str:
        rule = f"part_{len(self._rules)}"
        self._rules.append(f"{rule}: {body}")
        return rule


def _of_type(kind: type[Any], value: Any) -> Any:
    """Return the value, or an empty one of this type: the library reports a schema that is invalid."""
    return value if isinstance(value, kind) else kind()


def _quoted(text: str) -> str:
    return json.dumps(text)
