"""The contract of an extension: the parts that a folder below `extensions` adds to the core.

The core imports no extension: it finds each by the name of its folder. The package of an extension has EXTENSION. Its
`__init__.py` imports nothing but this module; the functions of an Extension import what they need when they are called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

PACKAGE = "extensions"


def _add_nothing(_: Any) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The parts that an extension adds; a field that is left out adds nothing.

    `add_commands(commands)`: adds commands to the command line, by `app.cli.parser.add_command(commands, …)`.
    """

    add_commands: Callable[[Any], None] = _add_nothing


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the extensions of this installation in the order of their names; none if it has no such folder."""
    found = find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    names = sorted(each.name for each in iter_modules(folders)) if folders else []
    return tuple(import_module(f"{PACKAGE}.{name}").EXTENSION for name in names)
