"""Import the server faster: without collections, and without libraries that it never uses."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from memory.garbage import exclude_imports, pause_collections

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
# Packages that a library imports if they are there: of structlog for tracebacks with values of variables, which logs of
# the server never have; of uvicorn to start again when its files change.
_UNUSED = {"structlog": "rich", "uvicorn": "watchfiles"}


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within the block the modules of the server are imported."""
    # A plugin of the server's environment has no use here, and the search for one reads the files of all packages.
    os.environ.setdefault(_PLUGINS, "__all__")
    pause_collections()
    try:
        for library, unused in _UNUSED.items():
            if library not in sys.modules:
                _import_without(library, unused)
        yield
    finally:
        exclude_imports()


def _import_without(library: str, unused: str) -> None:
    modules: dict[str, Any] = sys.modules
    found = modules.get(unused)
    modules[unused] = None
    try:
        import_module(library)
    finally:
        del modules[unused]
        if found is not None:
            modules[unused] = found
