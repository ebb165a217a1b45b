"""Render messages to a prompt with the template of a model's folder.

The template is code, in jinja's language. It runs in transformers' own sandbox, where it reaches nothing but the
messages. Here its time and the length of its result are bounded too, because jinja bounds neither. A single operation
is not bounded, except products and powers: model folders are trusted so far.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from threading import local
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Message, MessageCall

MAX_SECONDS = 2.0
"""CPU seconds. A long conversation of 1,000 messages takes a few milliseconds."""
MAX_CHARACTERS = 64 * 1024**2
"""Characters of a prompt: more than any model's context."""
_LARGEST_POWER = 64
_CHECKS_PER_READING = 64
# Names of the variable in the templates of different families.
_EFFORTS = ("reasoning_effort", "enable_thinking")
# Each has a field of its own in a request, or one value.
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})
_CLOCK_CHECK = "look at the clock"


class ChatTemplate:
    """Thread-safe."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, object],
        max_seconds: float = MAX_SECONDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        """`variables`: what the template reads besides the messages: the names of the special tokens, and those that
        are to replace the variables of `render`.

        Raises InvalidModel for an invalid template.
        """
        # Only the settings of transformers' environment are needed, so it compiles an empty template.
        theirs = _compile_jinja_template("").environment
        environment = _BoundedEnvironment(theirs, max_seconds, max_characters)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # errors of the parser and of Python itself
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise InvalidModel(f"the chat template cannot be compiled: {error}{where}") from error
        self._environment = environment
        self._variables = dict(variables)
        self.source = source
        self.names = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        """The variables that the template reads."""
        self._max_characters = max_characters

    @property
    def variables(self) -> frozenset[str]:
        """The variables that a request may set: all that are neither the server's nor the folder's."""
        return self.names - self._environment.globals.keys() - self._variables.keys() - _OWN_VARIABLES

    @property
    def has_reasoning_effort(self) -> bool:
        """Whether the template reads how long the model shall think."""
        return not self.names.isdisjoint(_EFFORTS)

    def render(
        self,
        messages: Sequence[Message],
        tools: str = "",
        reasoning_effort: str | None = None,
        part_roles: Collection[str] = (),
        variables: str = "",
        begins_response: bool = True,
    ) -> str:
        """Return the prompt, up to where the model's response begins; without `begins_response`, after the messages.

        `tools`: a JSON list, or empty. `part_roles`: roles whose content is a list with one part of text. `variables`:
        some of `self.variables`, a JSON object, or empty.

        Raises InvalidInput for the field `messages` if the template refuses them, or takes too long.
        """
        if not messages:
            raise InvalidInput("messages", "expected at least one message, got none")
        known: dict[str, Any] = {"documents": None, "add_generation_prompt": begins_response, **self._variables}
        if reasoning_effort is not None:
            known |= {"reasoning_effort": reasoning_effort, "enable_thinking": reasoning_effort != "none"}
        if variables:
            known |= json.loads(variables)
        self._environment.begin()
        try:
            parts, length = [], 0
            turns = [_turn(message, message.role in part_roles) for message in messages]
            known |= {"messages": turns, "tools": json.loads(tools) if tools else None}
            for part in self._template.generate(known):
                length += len(part)
                if length > self._max_characters:
                    raise _LimitExceeded(f"it makes more than {self._max_characters} characters of them")
                parts.append(part)
        except Exception as error:  # any error that a template raises on unsuitable messages
            reason = str(error).strip().partition("\n")[0][:300]
            raise InvalidInput(
                "messages", f"refused by the model's chat template: {reason or type(error).__name__}"
            ) from error
        return "".join(parts)


def _turn(message: Message, has_parts: bool) -> dict[str, Any]:
    """Return a message as templates know it: absent members are not there at all."""
    content: str | list[dict[str, str]] = message.content
    if has_parts or message.images:
        content = _parts(message)
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    others = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning_content": message.reasoning}
    return turn | {name: value for name, value in others.items() if value}


def _parts(message: Message) -> list[dict[str, str]]:
    """Return the content as parts, with each image and video between its texts."""
    if not message.images:
        return [{"type": "text", "text": message.content}]
    parts, end = [], 0
    for image in message.images:
        if image.at > end:
            parts.append({"type": "text", "text": message.content[end : image.at]})
        parts.append({"type": "video" if image.is_video else "image"})
        end = image.at
    if message.content[end:]:
        parts.append({"type": "text", "text": message.content[end:]})
    return parts


def _arguments(call: MessageCall) -> Any:
    """Return the object that templates write as JSON; arguments that were cut off stay a text."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return arguments if isinstance(arguments, dict) else call.arguments


class _LimitExceeded(Exception):
    """The template exceeds a limit."""


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment with a clock that every loop and every macro checks."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, theirs: jinja2.Environment, max_seconds: float, max_characters: int) -> None:
        extensions = [type(extension) for extension in theirs.extensions.values()]
        super().__init__(trim_blocks=theirs.trim_blocks, lstrip_blocks=theirs.lstrip_blocks, extensions=extensions)
        # A filter is the cheapest call in jinja; no template can name this one.
        self.filters = {**theirs.filters, _CLOCK_CHECK: self._check_clock}
        self.tests = theirs.tests
        self.globals = theirs.globals
        self._max_seconds = max_seconds
        self._max_characters = max_characters
        self.clock = local()

    def begin(self) -> None:
        """Start to count the calling thread's time."""
        self.clock.num_checks = 0
        self.clock.end_s = time.thread_time() + self._max_seconds

    def _check_clock(self, clock: local) -> None:
        """Raise if the time is over. Reading the clock takes longer than most loop bodies, so not every
        check reads it.
        """
        clock.num_checks += 1
        if not clock.num_checks % _CHECKS_PER_READING and time.thread_time() > clock.end_s:
            raise _LimitExceeded(f"it takes longer than {self._max_seconds} seconds over them")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound products and powers, which could fill the memory with a few characters."""
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= _LARGEST_POWER):
            raise _LimitExceeded(f"it raises to a power above {_LARGEST_POWER}")
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                repeats = isinstance(times, int) and hasattr(repeated, "__len__")
                if repeats and len(repeated) * times > self._max_characters:
                    raise _LimitExceeded("it repeats a text too often")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            look = nodes.Filter(nodes.EnvironmentAttribute("clock"), _CLOCK_CHECK, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(look).set_lineno(node.lineno))
        return template
