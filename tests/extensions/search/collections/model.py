"""A collection as a dictionary and numpy, and filters over one record: what the real one is compared with."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from extensions.search.collections.collection import Collection, open_collection
from extensions.search.collections.contract import CollectionSettings, Metric
from frameworks.core.filters import All, Any_, AnyOf, Exists, Filter, Not, Range, Scalar
from frameworks.core.vector_search import Metadata, MetadataValue, Record, Vectors

T = TypeVar("T")


class Opened:
    """A collection on an event loop of its own, for tests that are not coroutines."""

    def __init__(self, settings: CollectionSettings) -> None:
        self._runner = asyncio.Runner()
        try:
            self.collection: Collection = self.run(open_collection(settings))
        except BaseException:
            self._runner.close()
            raise

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def close(self) -> None:
        self.run(self.collection.close())
        self._runner.close()


def settings_of(folder: Path, dimensions: int, metric: Metric = Metric.COSINE, **others: Any) -> CollectionSettings:
    """Return the settings of a collection below `folder`."""
    return CollectionSettings("notes", folder / "notes", dimensions, metric, **others)


def random_vectors(count: int, dimensions: int, seed: int = 0) -> Vectors:
    """Return normally distributed vectors."""
    return np.random.default_rng(seed).standard_normal((count, dimensions), dtype=np.float32)


def records_of(vectors: Vectors, prefix: str = "") -> list[Record]:
    """Return a record for each vector, with its index as id."""
    return [Record(f"{prefix}{index}", vector) for index, vector in enumerate(vectors)]


def expected_scores(vectors: Vectors, query: Vectors, metric: Metric) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the scores of vectors [n, d], in float64."""
    wide, other = vectors.astype(np.float64), query.astype(np.float64)
    if metric is Metric.DOT:
        return np.asarray(wide @ other)
    if metric is Metric.EUCLID:
        return np.asarray(-np.linalg.norm(wide - other, axis=1))
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(other)
    return np.asarray(np.divide(wide @ other, lengths, out=np.zeros(len(wide)), where=lengths > 0))


def matches(where: Filter, metadata: Metadata) -> bool:
    """Return whether a record with this metadata matches."""
    match where:
        case All(parts):
            return all(matches(part, metadata) for part in parts)
        case Any_(parts):
            return any(matches(part, metadata) for part in parts)
        case Not(inner):
            return not matches(inner, metadata)
        case Exists(key):
            return metadata.get(key) is not None
        case Range(key, above, at_least, below, at_most):
            value = metadata.get(key)
            return (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and (above is None or value > above)
                and (at_least is None or value >= at_least)
                and (below is None or value < below)
                and (at_most is None or value <= at_most)
            )
        case AnyOf(key, values):
            return any(_is_equal(metadata.get(key), each) for each in values)


def _is_equal(value: MetadataValue, other: Scalar) -> bool:
    if isinstance(value, list):
        return other in value
    return isinstance(value, bool) == isinstance(other, bool) and value == other
