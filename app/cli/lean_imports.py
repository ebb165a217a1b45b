"""Import the server faster: without collections, and without libraries that it never uses."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memory.garbage import exclude_imports, pause_collections

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
# structlog imports it, if it is there, for tracebacks with values of variables, which logs of the server never have.
_UNUSED = "rich"


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within the block the modules of the server are imported."""
    # A plugin of the server's environment has no use here, and the search for one reads the files of all packages.
    os.environ.setdefault(_PLUGINS, "__all__")
    pause_collections()
    try:
        if "structlog" not in sys.modules:
            _import_structlog()
        yield
    finally:
        exclude_imports()


def _import_structlog() -> None:
    modules: dict[str, Any] = sys.modules
    found = modules.get(_UNUSED)
    modules[_UNUSED] = None
    try:
        import structlog  # noqa: F401
    finally:
        del modules[_UNUSED]
        if found is not None:
            modules[_UNUSED] = found
