"""Steps that search a collection of the server for the records nearest to vectors."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import structlog

from extensions.pipelines.kinds import TEXTS, Kind, Values
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import Port, StepFault
from frameworks.core.errors import (
    Draining,
    FieldError,
    InvalidInput,
    ModelFailed,
    ModelLoading,
    Overloaded,
    RoundhouseError,
)
from frameworks.core.filters import Filter, parse_filter
from frameworks.core.vector_search import MAX_TOP_K, Hit, NamedCollections
from frameworks.types import Array, TensorType

log = structlog.get_logger(__name__)

DEFAULT_TOP_K = 10
MAX_HITS = 1_048_576
"""Of one search: hits of all its queries together."""

_OUTPUTS: Mapping[str, Kind] = {
    "texts": TEXTS,
    "scores": TensorType("float32", (-1,)),
    "ids": TEXTS,
    "rows": TensorType("int64", (-1,)),
}


class SearchStep:
    """Find the records nearest to each vector of `vectors`, float32 [n, d].

    Outputs of all k hits, those of a query together and the best first: `texts` (string [k], empty for a record
    without a text), `scores` (float32 [k]), `ids` (string [k]), `rows` (int64 [k], the vector that found each hit).
    """

    options: ClassVar = frozenset({"top_k", "filter"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry, dimensions: int) -> None:
        """`dimensions`: numbers of each vector of the collection; -1 where they are unknown. Raises StepFault."""
        assert entry.collection is not None
        self._collection = entry.collection
        self._top_k = DEFAULT_TOP_K if entry.top_k is None else entry.top_k
        if self._top_k > MAX_TOP_K:
            raise StepFault("top_k", f"expected at most {MAX_TOP_K}, got {self._top_k}")
        self._where = None if entry.filter is None else _parsed(entry.filter)
        self._ports = {"vectors": Port(TensorType("float32", (-1, dimensions)))}

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return self._ports

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        return _OUTPUTS

    async def search(self, collections: NamedCollections, values: Values, step: str) -> Values:
        """Return the outputs for `vectors`. A cancelled search does not run if it has not begun.

        `step`: names the step in messages, such as `step "find"`. Raises InvalidInput, Overloaded, ModelLoading,
        ModelFailed and Draining, none with the name of the collection: the sender may not know it.
        """
        vectors: Array = values["vectors"]
        try:
            if len(vectors) * self._top_k > MAX_HITS:
                most = MAX_HITS // self._top_k
                raise InvalidInput("vectors", f"expected at most {most} rows, got {len(vectors)}; send fewer at once")
            found = await collections.opened(self._collection).search(vectors, self._top_k, where=self._where)
        except RoundhouseError as error:
            raise self._named(error, step) from error
        return _values_of(found)

    def _named(self, error: RoundhouseError, step: str) -> RoundhouseError:
        """Return the error of a search with the step, without the collection."""
        if isinstance(error, FieldError):
            return InvalidInput("vectors", f"{error.reason} ({step})")
        if isinstance(error, Overloaded):
            reason = f"{step}: too many queries wait for its collection; try again later"
            return Overloaded(reason, error.retry_after_s)
        log.warning("the search of a step failed", step=step, collection=self._collection, reason=error.message)
        if isinstance(error, ModelLoading):
            return ModelLoading(f"{step}: its collection is being opened; try again later")
        if isinstance(error, Draining):
            return Draining(f"{step}: its collection is being closed; send the request again")
        return ModelFailed(f"{step}: its collection failed; the log of the server has the reason")


def _parsed(table: dict[str, object]) -> Filter:
    try:
        return parse_filter(table)
    except FieldError as error:
        raise StepFault(error.field, error.reason) from error


def _values_of(found: list[list[Hit]]) -> Values:
    hits = [hit for each in found for hit in each]
    texts, ids = np.empty(len(hits), dtype=object), np.empty(len(hits), dtype=object)
    texts[:] = [hit.text or "" for hit in hits]
    ids[:] = [hit.id for hit in hits]
    scores = np.array([hit.score for hit in hits], dtype=np.float32)
    rows = np.repeat(np.arange(len(found), dtype=np.int64), [len(each) for each in found])
    return {"texts": texts, "scores": scores, "ids": ids, "rows": rows}
