"""Define the requests to collections, as every protocol decodes them."""

import re
from dataclasses import dataclass

from frameworks.core.errors import FieldError
from frameworks.core.filters import Filter
from frameworks.core.vector_search import Hit, Metadata, Vectors

_PART = re.compile(r"records\[(\d+)\]\.(id|text|vector|metadata)(.*)", re.DOTALL)
_LISTS = {"id": "ids", "text": "texts", "vector": "vectors"}

Queries = list[str] | list[bytes] | Vectors
"""Texts, images (files), or vectors: float32 [n, dimensions]."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Search a collection. `candidates`: hits of each query that `rerank_model` ranks again by their texts."""

    collection: str
    queries: Queries
    top_k: int
    where: Filter | None = None
    rerank_model: str | None = None
    candidates: int = 0
    include_vectors: bool = False
    exact: bool = False
    is_list: bool = True
    """Whether the body has a list of queries."""

    def field_of(self, index: int) -> str:
        """Return the field of a query in the body."""
        image = ".image" if isinstance(self.queries, list) and isinstance(self.queries[0], bytes) else ""
        return (f"query[{index}]" if self.is_list else "query") + image


@dataclass(frozen=True, slots=True)
class RankedHit:
    """A hit and its score by the search. `rerank_score`: None without a second ranking."""

    hit: Hit
    rerank_score: float | None = None


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Hits for each query, the best first. `tokens`: that models read; None without a model."""

    hits: list[list[RankedHit]]
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """A record to upsert. `vector`: float32 [dimensions]; None: the collection's model embeds `image` or `text`."""

    id: str
    vector: Vectors | None = None
    text: str | None = None
    image: bytes | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class UpsertRequest:
    """Insert or replace records. `is_lists`: the body has a list for each part of the records."""

    collection: str
    records: list[GivenRecord]
    is_lists: bool = False

    def field_of(self, index: int, part: str) -> str:
        """Return the field of a part of a record in the body."""
        if not self.is_lists:
            return f"records[{index}].{part}"
        return f"{_LISTS.get(part, part)}[{index}]"

    def renamed(self, error: FieldError) -> FieldError:
        """Return an error of the collection with the field of the body."""
        found = _PART.fullmatch(error.field)
        if found is None:
            return error
        return type(error)(self.field_of(int(found[1]), found[2]) + found[3], error.reason)


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """Delete records by id, by filter, or all: one of the fields is set."""

    collection: str
    ids: list[str] | None = None
    where: Filter | None = None


@dataclass(frozen=True, slots=True)
class ChangeAnswer:
    """`count`: of changed records. `tokens`: that the model read; None without a model."""

    count: int
    tokens: int | None = None
