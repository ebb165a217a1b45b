"""Fields of known APIs that the server refuses, with the remedy of each, and their values that change nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.shared.bodies import got
from frameworks.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused. `neutral`: the values that are accepted besides null."""

    remedy: str
    neutral: tuple[Any, ...] = ()

    def accepts(self, value: Any) -> bool:
        # Python takes 0 for False; JSON does not.
        return value is None or any(type(value) is type(each) and value == each for each in self.neutral)

    def error(self, field: str, value: Any) -> InvalidInput:
        expected = " or ".join(orjson.dumps(each).decode() for each in self.neutral or (None,))
        found = orjson.dumps(value).decode() if isinstance(value, bool) else got(value)
        return InvalidInput(field, f"expected {expected}, got {found}; {self.remedy}")


@dataclass(frozen=True, slots=True)
class Ignored(Refusal):
    """A field that changes no text of this server. The response names it, unless its value is neutral."""

    remedy: str = "omit the field"


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """The refused and the ignored fields of one route, by name."""

    refusals: Mapping[str, Refusal]

    def apply(self, fields: dict[str, Any], within: str = "") -> tuple[str, ...]:
        """Remove the fields of the policy from `fields`, and return those that are ignored.

        `within`: the path of the object, as `messages[0].`. Raises InvalidInput for a field that would change the
        response.
        """
        if self.refusals.keys().isdisjoint(fields):
            return ()
        ignored = []
        for name, refusal in self.refusals.items():
            if name in fields and not refusal.accepts(value := fields.pop(name)):
                if not isinstance(refusal, Ignored):
                    raise refusal.error(within + name, value)
                ignored.append(within + name)
        return tuple(ignored)

    def apply_to(self, fields: dict[str, Any], name: str) -> tuple[str, ...]:
        """As `apply`, to a copy of the object in the field `name`; anything but an object is left as it is."""
        value = fields.get(name)
        if not isinstance(value, dict):
            return ()
        fields[name] = value = dict(value)
        return self.apply(value, f"{name}.")


EMPTY = FieldPolicy({})
"""Refuses nothing."""
