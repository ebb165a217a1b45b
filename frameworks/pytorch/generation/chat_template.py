"""Messages to a prompt, by the template that a model's folder brings.

The template is code, in jinja's language. It runs in transformers' own sandbox for it, where it reaches nothing but the
messages; here it is also bounded in time and in the length of what it makes, because jinja bounds neither. What a
single step of it takes is not bounded, but for a product's: so far a model's folder is trusted.
"""

import time
from collections.abc import Mapping, Sequence
from threading import local
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

from frameworks.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Message

MOST_SECONDS = 2.0
"""Of the CPU. A long conversation of 1,000 messages takes a few milliseconds."""
MOST_CHARACTERS = 64 * 1024**2
"""Of a prompt: more than any model's context."""
_LARGEST_POWER = 64
_LOOKS_PER_READING = 64
_LOOK = "look at the clock"


class ChatTemplate:
    """May be used by several threads at once."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        most_seconds: float = MOST_SECONDS,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        """`variables`: what the template reads beside the messages, the names of the special tokens.

        Raises InvalidModel where it is no template.
        """
        # Of theirs only what stands in it is wanted, so it compiles nothing.
        theirs = _compile_jinja_template("").environment
        environment = _BoundedEnvironment(theirs, most_seconds, most_characters)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # of a text that is no template, the parser's and Python's own
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise InvalidModel(f"the chat template cannot be compiled: {error}{where}") from error
        self._environment = environment
        self._variables = dict(variables)
        self._most_characters = most_characters

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the model's answer begins.

        Raises InvalidInput, with the field `messages`: where the template refuses them, or takes too long.
        """
        if not messages:
            raise InvalidInput("messages", "it is empty; a conversation has a message at least")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        self._environment.begin()
        try:
            parts, length = [], 0
            for part in self._template.generate(
                **self._variables, messages=turns, tools=None, documents=None, add_generation_prompt=True
            ):
                length += len(part)
                if length > self._most_characters:
                    raise _TooMuch(f"it makes more than {self._most_characters} characters of them")
                parts.append(part)
        except Exception as error:  # whatever a template does that its messages do not suit
            reason = str(error).strip().partition("\n")[0][:300]
            raise InvalidInput(
                "messages", f"the model's chat template does not take them: {reason or type(error).__name__}"
            ) from error
        return "".join(parts)


class _TooMuch(Exception):
    """The template costs more than it may."""


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment with a clock that every loop and every macro looks at."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, theirs: jinja2.Environment, most_seconds: float, most_characters: int) -> None:
        extensions = [type(extension) for extension in theirs.extensions.values()]
        super().__init__(trim_blocks=theirs.trim_blocks, lstrip_blocks=theirs.lstrip_blocks, extensions=extensions)
        # A filter is what jinja calls with the least ado; no template can name this one.
        self.filters = {**theirs.filters, _LOOK: self._look_at_clock}
        self.tests = theirs.tests
        self.globals = theirs.globals
        self._most_seconds = most_seconds
        self._most_characters = most_characters
        self.clock = local()

    def begin(self) -> None:
        """From now on the calling thread's time counts."""
        self.clock.num_looks = 0
        self.clock.end_s = time.thread_time() + self._most_seconds

    def _look_at_clock(self, clock: local) -> None:
        """Raises where the time is over. To read the clock takes longer than a turn of most loops: not each time."""
        clock.num_looks += 1
        if not clock.num_looks % _LOOKS_PER_READING and time.thread_time() > clock.end_s:
            raise _TooMuch(f"it takes longer than {self._most_seconds} seconds over them")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Products and powers, which a few letters can make as large as the memory."""
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= _LARGEST_POWER):
            raise _TooMuch(f"it raises to a power above {_LARGEST_POWER}")
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                repeats = isinstance(times, int) and hasattr(repeated, "__len__")
                if repeats and len(repeated) * times > self._most_characters:
                    raise _TooMuch("it repeats a text too often")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            look = nodes.Filter(nodes.EnvironmentAttribute("clock"), _LOOK, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(look).set_lineno(node.lineno))
        return template
