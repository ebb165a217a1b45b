"""Parts of a response, as the parser finds them."""

from typing import Literal, NamedTuple


class TextPart(NamedTuple):
    """Further text of the content, or of the reasoning before it."""

    kind: Literal["content", "reasoning"]
    text: str


class CallBegin(NamedTuple):
    """A tool call begins. `call`: its index in the response, from 0."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """Further text of the arguments of a call, which is JSON."""

    call: int
    text: str


Event = TextPart | CallBegin | CallArguments
