"""Fill a collection with the embeddings of a run: that of a running server, or one that this process opens."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa

from app.extension import extensions
from extensions.offline.columns import to_values
from extensions.offline.contract import RequestRefused, RunFailed, WrongCommand
from frameworks.core.errors import RoundhouseError
from frameworks.core.vector_search import Record, Vectors, WritableCollection

if TYPE_CHECKING:
    from app.config import LoadedSettings

RECORDS_PER_UPSERT = 500

Post = Callable[[str, bytes], Awaitable[Any]]
"""Post a body to a path of the server, and return the content of a 200. Raises RequestRefused."""


class Sink(Protocol):
    """A collection that takes records. `name`: of the collection."""

    @property
    def name(self) -> str: ...

    async def upsert(self, records: list[Record]) -> None:
        """Return when the records are durable. Raises RunFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Into:
    """Columns of the input: of the ids, of the texts (None: the records have none), and of the metadata."""

    sink: Sink
    id_column: str
    text_column: str | None
    metadata_columns: tuple[str, ...] = ()

    @property
    def identity(self) -> list[object]:
        """The values that a later command must have in common to resume the run."""
        return [self.sink.name, self.id_column, list(self.metadata_columns)]

    def check(self, schema: pa.Schema) -> None:
        """Raise WrongCommand for columns that the output does not repeat. `schema`: of those that it does."""
        for option, name in (("--id", self.id_column), *(("--metadata", each) for each in self.metadata_columns)):
            if name not in schema.names:
                raise WrongCommand(f'{option}: expected one of {", ".join(schema.names)}, got "{name}"; name a column')

    async def fill(self, table: pa.Table, embedding_column: str) -> None:
        """Upsert the rows of a window. Doing it again changes nothing. Raises RunFailed."""
        if not table.num_rows:
            return
        records = self._records(table, embedding_column)
        for start in range(0, len(records), RECORDS_PER_UPSERT):
            await self.sink.upsert(records[start : start + RECORDS_PER_UPSERT])

    def _records(self, table: pa.Table, embedding_column: str) -> list[Record]:
        column = table.column(embedding_column).combine_chunks()
        vectors: Vectors = np.asarray(column.flatten(), np.float32).reshape(table.num_rows, -1)
        ids = to_values(table, self.id_column)
        texts = [None] * table.num_rows if self.text_column is None else to_values(table, self.text_column)
        metadata = {name: to_values(table, name) for name in self.metadata_columns}
        return [
            Record(
                _id_of(ids[row], self.id_column),
                vectors[row],
                texts[row],
                {name: _plain(values[row]) for name, values in metadata.items()},
            )
            for row in range(table.num_rows)
        ]


def _id_of(value: Any, column: str) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    kind = "null" if value is None else "an empty text" if value == "" else type(value).__name__
    raise RunFailed(f"{column}: expected a text or an integer as the id of each row, got {kind}")


def _plain(value: Any) -> Any:
    """Return a value of metadata: dates as ISO 8601, and null for NaN and infinities."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        value = float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RemoteSink:
    """A collection of a running server."""

    def __init__(self, name: str, post: Post) -> None:
        self.name = name
        self._post = post

    async def upsert(self, records: list[Record]) -> None:
        body = {
            "ids": [each.id for each in records],
            "vectors": np.stack([each.vector for each in records if each.vector is not None]),
            "texts": [each.text for each in records],
            "metadata": [each.metadata for each in records],
        }
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            await self._post(f"/v1/collections/{quote(self.name, safe='')}/upsert", content)
        except RequestRefused as error:
            raise RunFailed(f"--into: {error}") from error


class LocalSink:
    """A collection that this process has opened."""

    def __init__(self, name: str, collection: WritableCollection) -> None:
        self.name = name
        self._collection = collection

    async def upsert(self, records: list[Record]) -> None:
        try:
            await self._collection.upsert(records)
        except RoundhouseError as error:
            raise RunFailed(f"--into: {error.message}") from error


@asynccontextmanager
async def open_sink(loaded: "LoadedSettings", name: str) -> AsyncIterator[LocalSink]:
    """Open a collection of the settings, which no server may have open. Raises WrongCommand, RunFailed."""
    found = next((each.local_collections for each in extensions() if each.local_collections is not None), None)
    if found is None:
        raise WrongCommand("--into: expected an installation with extensions/search, got none; say --url for a server")
    collections = found(loaded)
    if name not in collections.names:
        known = ", ".join(collections.names) or "none"
        raise WrongCommand(
            f'--into: expected a collection of --config, which has {known}, got "{name}"; or say --url for a server'
        )
    try:
        collection = await collections.open(name)
    except RoundhouseError as error:
        raise RunFailed(f"--into: {error.message}; say --url if a server has it open") from error
    try:
        yield LocalSink(name, collection)
    finally:
        await collection.close()
