"""Bodies of the routes of collections, as OpenAPI shows them. Those with the suffix Options validate the parts that are
not read by hand.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import ResponseBody
from extensions.search.collections.contract import MAX_ID_BYTES
from extensions.search.protocol.codec import SearchBody
from frameworks.core.vector_search import MAX_TOP_K

MAX_QUERIES = 1024
MAX_RECORDS = 10_000
"""Records, or ids, of one request."""
MAX_CANDIDATES = 1000
DEFAULT_CANDIDATES = 50

_FILTER_EXAMPLE: dict[str, Any] = {"language": "en", "year": {"gte": 2020}}
_Image = Annotated[
    str, Field(description="A file in base64, or a data URL: JPEG, PNG or WebP.", examples=["data:image/png;base64,…"])
]
_Filter = Annotated[
    dict[str, Any],
    Field(description="Conditions on the metadata.", json_schema_extra={"examples": [_FILTER_EXAMPLE]}),
]


class ImageQuery(ResponseBody):
    """An image to search with."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": "data:image/png;base64,…"}]})

    image: _Image


class SearchOptions(SearchBody):
    """The options of a search."""

    top_k: int = Field(10, ge=1, le=MAX_TOP_K, description="The number of hits for each query.")
    rerank_model: str | None = Field(
        None,
        min_length=1,
        description="A cross-encoder that ranks the best hits of texts again, by their texts.",
    )
    candidates: int | None = Field(
        None,
        ge=1,
        le=MAX_CANDIDATES,
        description=f"The number of hits that rerank_model ranks. Default: {DEFAULT_CANDIDATES}, or top_k if it is "
        "larger.",
    )
    include_text: bool = Field(True, description="Return the texts of the records.")
    include_metadata: bool = Field(True, description="Return the metadata of the records.")
    include_vectors: bool = Field(False, description="Return the vectors of the records.")
    exact: bool = Field(False, description="Compare all records, without an index.")


class SearchCollection(SearchOptions):
    """The queries of a search: texts, images or vectors."""

    query: str | list[str] | list[float] | list[list[float]] | ImageQuery | list[ImageQuery] = Field(
        description="A text, a vector or an image, or a list of one of these.", examples=["Where do engines wait?"]
    )
    filter: _Filter | None = None


class SearchHit(ResponseBody):
    """A record that was found. `score`: more is nearer. `rerank_score`: with rerank_model, which orders the hits."""

    id: str
    score: float
    rerank_score: float | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    vector: list[float] | None = None


class SearchResponse(ResponseBody):
    """The hits, the best first: a list for one query, lists for a list of queries."""

    collection: str
    results: list[SearchHit] | list[list[SearchHit]]
    tokens: int | None = Field(None, description="That the models read.")
    latency_ms: float


class UpsertRecord(ResponseBody):
    """A record. Without `vector` the model of the collection embeds `image`, else `text`."""

    id: str = Field(min_length=1, description=f"At most {MAX_ID_BYTES} bytes.")
    vector: list[float] | None = None
    text: str | None = None
    image: _Image | None = None
    metadata: dict[str, str | float | bool | list[str] | None] | None = None


_Metadata = dict[str, str | float | bool | list[str] | None]


class UpsertCollection(SearchBody):
    """Records to insert: `records`, or `ids` with lists of the same length, which are read faster. They replace those
    of the same ids as a whole.
    """

    records: list[UpsertRecord] | None = Field(None, min_length=1, max_length=MAX_RECORDS)
    ids: list[str] | None = Field(None, min_length=1, max_length=MAX_RECORDS)
    vectors: list[list[float]] | None = Field(None, description="Of `ids`. Default: the model embeds `texts`.")
    texts: list[str | None] | None = Field(None, description="Of `ids`.")
    metadata: list[_Metadata | None] | None = Field(None, description="Of `ids`.")


class UpsertResponse(ResponseBody):
    """The records are on disk."""

    collection: str
    upserted: int
    tokens: int | None = None
    latency_ms: float


class DeleteOptions(SearchBody):
    """Ids, or `all`."""

    ids: list[str] | None = Field(None, min_length=1, max_length=MAX_RECORDS)
    all: bool = Field(False, description="Delete every record.")


class DeleteFromCollection(DeleteOptions):
    """Which records to delete: one of `ids`, `filter` and `all`."""

    filter: _Filter | None = None


class DeleteResponse(ResponseBody):
    """The records are deleted on disk."""

    collection: str
    deleted: int
    latency_ms: float
