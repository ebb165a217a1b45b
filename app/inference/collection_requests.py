"""Define the requests to collections, as every protocol decodes them."""

from dataclasses import dataclass

from frameworks.collections.contract import Hit, Metadata, Vectors
from frameworks.collections.filters import Filter

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
    """Insert records, or replace those of the same ids."""

    collection: str
    records: list[GivenRecord]


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
