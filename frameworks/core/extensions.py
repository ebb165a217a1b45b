"""Find the extensions of this installation by their folders."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

PACKAGE = "extensions"


@cache
def found_extensions() -> tuple[Any, ...]:
    """Return EXTENSION of each package below `extensions`, in the order of their names; none without such a folder.

    app/extension.py has their type, above all parts of the core that it names.
    """
    found = find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    names = sorted(each.name for each in iter_modules(folders)) if folders else []
    return tuple(import_module(f"{PACKAGE}.{name}").EXTENSION for name in names)
