"""The formats in which models write tool calls, and how a chat template shows which one its model was trained on."""

from collections.abc import Collection
from dataclasses import dataclass

from frameworks.core.settings.entries import ToolFormat

THINK = "<think>"
END_OF_THINKING = "</think>"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
PYTHONIC_BEGINS = ("<|python_start|>", "<|tool_call_start|>")
PYTHONIC_ENDS = ("<|python_end|>", "<|tool_call_end|>")

_MARKS: dict[ToolFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": (PYTHON_TAG,),
    "mistral": (TOOL_CALLS, ARGS, CALL_ID),
    "mistral_args": (TOOL_CALLS, ARGS, CALL_ID),
    "pythonic": (*PYTHONIC_BEGINS, *PYTHONIC_ENDS),
}
# Formats of other families, which share a mark with one of ours.
_OTHER_FORMATS = ("<function=", "<arg_key>", "<|channel|>", "tool▁calls▁begin")


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Name the parts of a model's text besides content. `tools` None: no tool calls. `thinks`: `<think>` blocks."""

    tools: ToolFormat | None = None
    thinks: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks of the format. Those that are special tokens of the model are part of its text."""
        thinking = (THINK, END_OF_THINKING) if self.thinks else ()
        return thinking if self.tools is None else (*thinking, *_MARKS[self.tools])


def format_of_template(source: str, names: Collection[str]) -> ToolFormat | None:
    """Return the format that a chat template shows, or None. `names`: the variables that the template reads."""
    if "tools" not in names or any(mark in source for mark in _OTHER_FORMATS):
        return None
    if TOOL_CALLS in source:
        return "mistral_args" if ARGS in source else "mistral"
    if "<tool_call>" in source:
        return "hermes"
    if "[func_name1(" in source or any(mark in source for mark in PYTHONIC_BEGINS):
        return "pythonic"
    if PYTHON_TAG in source or '"parameters": dictionary' in source:
        return "llama3_json"
    return None


def thinks_by_template(source: str) -> bool:
    """Return whether a model thinks between `<think>` and `</think>`, by its chat template."""
    return END_OF_THINKING in source
