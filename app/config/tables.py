"""The tables of config.toml that extensions add to those of the core."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.config.source import Source
from frameworks.core.extras import found_extensions
from frameworks.core.settings.composites import CompositeModelEntry


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """A table of config.toml. `annotation`, `default`: of its field in Settings.

    `check`: adds an issue for each fault of the document that the type cannot find. `refused_on_ray`: why a deployment
    on Ray cannot have the table; empty: it can. `composite`: returns the model of an entry, which has `names`,
    `max_queue_size` and `max_concurrent_requests`; None for a table without composite models.
    """

    name: str
    annotation: Any
    default: Any
    check: Callable[[Source], None] = lambda _: None
    refused_on_ray: str = ""
    composite: Callable[[Any], CompositeModelEntry] | None = None


@cache
def extension_tables() -> tuple[ConfigTable, ...]:
    """Return the tables of all extensions."""
    return tuple(table for extension in found_extensions() for table in extension.tables())
