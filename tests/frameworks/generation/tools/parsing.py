"""Parse a text in pieces, and collect what a client would join."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from frameworks.generation.tools.events import CallBegin, TextPart
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.tools.parser import ResponseParser


@dataclass
class Parsed:
    """The joined events of a text. `calls`: names and arguments."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def parse(
    text_format: TextFormat,
    pieces: Iterable[str],
    names: Iterable[str] = ("f", "g"),
    max_calls: int | None = None,
    is_cut: bool = False,
) -> Parsed:
    """Return the joined events of the pieces; check that they arrive in order. `is_cut`: as of `finish`."""
    parser = ResponseParser(text_format, frozenset(names), max_calls)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish(is_cut)
    parsed = Parsed()
    for event in events:
        if isinstance(event, CallBegin):
            assert event.call == len(parsed.calls)
            parsed.calls.append((event.name, ""))
        elif isinstance(event, TextPart):
            setattr(parsed, event.kind, getattr(parsed, event.kind) + event.text)
        else:
            assert event.call == len(parsed.calls) - 1
            name, arguments = parsed.calls[-1]
            parsed.calls[-1] = (name, arguments + event.text)
    assert parser.has_calls == bool(parsed.calls)
    return parsed
