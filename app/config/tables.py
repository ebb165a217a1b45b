"""The tables of config.toml that extensions add to those of the core."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.config.source import Source
from frameworks.core.extras import found_extensions


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """A table of config.toml. `annotation`, `default`: of its field in Settings.

    `check`: adds an issue for each fault of the document that the type cannot find. `refused_on_ray`: why a deployment
    on Ray cannot have the table; empty: it can.
    """

    name: str
    annotation: Any
    default: Any
    check: Callable[[Source], None] = lambda _: None
    refused_on_ray: str = ""


@cache
def extension_tables() -> tuple[ConfigTable, ...]:
    """Return the tables of all extensions."""
    return tuple(table for extension in found_extensions() for table in extension.tables())
