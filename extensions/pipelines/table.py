"""Check `[[pipelines]]`: the graph of each, its names, and the types that are known without loading a model."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, ValidationError

from app.config.issues import format_value
from app.config.source import Source, names_of
from app.config.tables import ConfigTable
from extensions.pipelines.settings import PipelineEntry, PipelineModelEntry


def check_pipelines(source: Source) -> None:
    """Add an issue for each fault of each pipeline. The types of models are known when they are loaded."""
    pipelines = list(_entries(source, "pipelines"))
    if not pipelines:
        return
    from extensions.pipelines.checker import check_pipeline

    models = [name for _, entry in source.model_entries() for _, name in names_of(entry)]
    names: list[str] = []
    for index, content in pipelines:
        own = list(names_of(content))
        for place, name in own:
            if name in models or name in names:
                message = (
                    f"expected a name that no model and no other pipeline has, got {format_value(name)}; choose another"
                )
                source.add_issue(("pipelines", index, *place), message, "duplicate")
        names += [name for _, name in own]
    collections = _dimensions(source)
    for index, content in pipelines:
        try:
            entry = PipelineEntry.model_validate(content)
        except ValidationError:
            continue  # reported with all other settings
        _, faults = check_pipeline(entry, models, pipelines=names, collections=collections)
        for place, message in faults:
            source.add_issue(("pipelines", index, *place), message, "invalid")


def _dimensions(source: Source) -> dict[str, int]:
    """Return collection → numbers of each vector; -1 where they are not valid, which is reported elsewhere."""
    found: dict[str, int] = {}
    for _, table in _entries(source, "collections"):
        name, dimensions = (table.get(key) if isinstance(table, dict) else None for key in ("name", "dimensions"))
        if isinstance(name, str):
            found[name] = dimensions if type(dimensions) is int and dimensions > 0 else -1
    return found


def _entries(source: Source, table: str) -> Iterator[tuple[int, Any]]:
    entries = source.document.get(table)
    return enumerate(entries if isinstance(entries, list | tuple) else [])


TABLE = ConfigTable(
    "pipelines",
    Annotated[tuple[PipelineEntry, ...], Field(strict=False)],
    (),
    check_pipelines,
    composite=PipelineModelEntry.of,
)
