"""Find the extensions of this installation, and the command that adds an extra to it."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

DISTRIBUTION = "roundhouse-server"
"""The name on package indexes. `roundhouse` is another project there."""
PACKAGE = "extensions"

_MAKEFILE = Path(__file__).parents[2] / "Makefile"


def install_command(extra: str) -> str:
    """Return what to type: make in a checkout, whose versions are pinned, and pip elsewhere."""
    if _MAKEFILE.is_file():
        return f"make install EXTRAS={extra}"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def found_extensions() -> tuple[Any, ...]:
    """Return EXTENSION of each package below `extensions`, in the order of their names; none without such a folder.

    app/extension.py has their type, above all parts of the core that it names.
    """
    found = find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    names = sorted(each.name for each in iter_modules(folders)) if folders else []
    return tuple(import_module(f"{PACKAGE}.{name}").EXTENSION for name in names)
