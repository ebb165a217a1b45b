"""Settings of collections: `[[collections]]`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.config.issues import format_value, nearest
from app.config.loading import Settings
from app.config.source import Source, names_of
from app.config.tables import ConfigTable
from extensions.search.collections.contract import MAX_DIMENSIONS, CollectionSettings, Metric
from frameworks.core.settings.entries import Count, SettingsPath
from memory.settings import SETTINGS_RULES

COLLECTIONS_FOLDER = Path("collections")
"""Of collections without a path, each below it by its name."""
COLLECTION_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class CollectionEntry(BaseModel):
    """`[[collections]]`: one collection of embeddings, with its files."""

    model_config = SETTINGS_RULES

    name: Annotated[str, Field(pattern=COLLECTION_NAME)]
    """Name in requests: letters, digits, `.`, `-` and `_`, at most 128; the first is a letter or a digit. No two
    collections have the same name."""
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]
    """Values of each vector. They cannot be changed later."""
    metric: Literal["cosine", "dot", "euclid"] = "cosine"
    """How vectors are compared: `cosine`, `dot` (inner product) or `euclid` (distance). It cannot be changed later."""
    path: SettingsPath | None = None
    """Folder of the files; created at the first start. A relative path starts at the folder of the config file. None:
    `./collections/` and the name."""
    model: str | None = None
    """Name of the model that embeds the texts of queries and records. None: requests send vectors."""
    index_rows: Annotated[int, Field(ge=0, le=2**31 - 1)] = 200_000
    """Number of rows from which an index is built; below it each search compares all rows. 0: never."""
    index_recall: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Share of the exact results that the index must find, as measured after each build. Below it, searches compare all
    rows."""
    max_rows: Count | None = None
    """Maximum number of records; an upsert beyond it is refused. None: no bound but memory and disk."""
    max_waiting: Count = 1024
    """Maximum queries that wait for a search; more are refused with 503."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of CPUs that one search uses."""

    @property
    def folder(self) -> Path:
        """The folder of the files, as it is written."""
        return self.path or COLLECTIONS_FOLDER / self.name

    def at(self, folder: Path) -> CollectionSettings:
        """Return the settings of the collection whose files are in `folder`."""
        return CollectionSettings(
            self.name,
            folder,
            self.dimensions,
            Metric(self.metric),
            index_rows=self.index_rows or None,
            index_recall=self.index_recall,
            max_rows=self.max_rows,
            max_waiting=self.max_waiting,
            threads=self.threads,
        )


def entries_of(settings: Settings) -> tuple[CollectionEntry, ...]:
    """Return the collections of the settings."""
    return settings.table("collections", ())


def check_collections(source: Source) -> None:
    """Add an issue for each collection with the name or path of another one, and for each model that is not in the
    document.
    """
    entries = source.document.get("collections")
    tables = [each if isinstance(each, dict) else {} for each in entries] if isinstance(entries, list | tuple) else []
    for key, wanted in (("name", "name"), ("path", "folder")):
        seen: set[str] = set()
        for index, table in enumerate(tables):
            value = table.get(key)
            if isinstance(value, str) and value in seen:
                message = f"expected a {wanted} of its own, got {format_value(value)} twice; choose another"
                source.add_issue(("collections", index, key), message, "duplicate")
            elif isinstance(value, str):
                seen.add(value)
    _check_models(source, tables)


def _check_models(source: Source, tables: list[dict[str, object]]) -> None:
    known = [name for _, entry in source.model_entries() for _, name in names_of(entry)]
    for index, table in enumerate(tables):
        name = table.get("model")
        # Without entries the models come from the command line.
        if known and isinstance(name, str) and name not in known:
            near = nearest(name, known)
            hint = f'did you mean "{near}"?' if near else "add it to the models, or remove this key"
            message = f"expected the name of a model, got {format_value(name)}; {hint}"
            source.add_issue(("collections", index, "model"), message, "invalid")


TABLE = ConfigTable(
    "collections",
    Annotated[tuple[CollectionEntry, ...], Field(strict=False)],
    (),
    check_collections,
    "expected none on Ray, where no process owns their files; serve them with `roundhouse serve` beside Ray, and send "
    "it the vectors of POST /v1/embeddings",
)
