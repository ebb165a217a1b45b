"""The contract of an extension: the parts that a folder below `extensions` adds to the core.

The core imports no extension: it finds each by the name of its folder. The package of an extension has EXTENSION. Its
`__init__.py` imports nothing but this module; the functions of an Extension import what they need when they are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import APIRouter

    from app.admin.views import Views
    from app.auth.permissions import Access
    from app.config import Settings
    from app.protocols.shared.routes import Route

PACKAGE = "extensions"


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server that the routes of an extension use."""

    settings: "Settings"
    views: "Views"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The parts that an extension adds; a field that is left out adds nothing.

    `add_commands(commands)`: adds commands to the command line, by `app.cli.parser.add_command(commands, …)`.
    `routes()`: inference routes with their codecs; requests find them after those of the core.
    `routers(parts)`: routes that describe or change the server.
    `access()`: the scope that each path of these routes needs, as in app/auth/permissions.py.
    """

    add_commands: Callable[[Any], None] = lambda _: None
    routes: "Callable[[], Sequence[Route]]" = tuple
    routers: "Callable[[ServerParts], Sequence[APIRouter]]" = lambda _: ()
    access: "Callable[[], Mapping[str, Mapping[str, Access]]]" = dict


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the extensions of this installation in the order of their names; none if it has no such folder."""
    found = find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    names = sorted(each.name for each in iter_modules(folders)) if folders else []
    return tuple(import_module(f"{PACKAGE}.{name}").EXTENSION for name in names)


def http_access() -> "Mapping[str, Mapping[str, Access]]":
    """Return the table of permissions of all HTTP routes. Two parts of the server can have methods of one path.

    Raises ValueError for a method of a path that two of them have.
    """
    from app.auth.permissions import HTTP_ACCESS

    table = {path: dict(methods) for path, methods in HTTP_ACCESS.items()}
    for extension in extensions():
        for path, methods in extension.access().items():
            known = table.setdefault(path, {})
            if twice := known.keys() & methods.keys():
                raise ValueError(f"{path}: expected one entry of {min(twice)}, got two; remove one")
            known.update(methods)
    return table
