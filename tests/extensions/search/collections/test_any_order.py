"""Any order of upserts, deletes, searches and reopens gives what a dictionary and numpy give."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extensions.search.collections.contract import CollectionSettings, Metric
from frameworks.core.filters import All, Any_, AnyOf, Exists, Filter, Not, Range
from frameworks.core.vector_search import Hit, Metadata, Record, Vectors
from tests.extensions.search.collections.model import Opened, expected_scores, matches, settings_of

_DIMENSIONS = 5
_VALUES = st.one_of(
    st.sampled_from(["a", "b", "1"]),
    st.sampled_from([0, 1, 2.5, -3]),
    st.booleans(),
    st.none(),
    st.lists(st.sampled_from(["a", "b"]), max_size=3),
)
_KEYS = st.sampled_from(["x", "y"])
_METADATA = st.dictionaries(_KEYS, _VALUES, max_size=2)
_NUMBERS = st.sampled_from([None, -3.0, 0.0, 1.0, 2.5])
_SCALARS = st.one_of(st.sampled_from(["a", "b", "1"]), st.sampled_from([0.0, 1.0, 2.5]), st.booleans())
_LEAVES: st.SearchStrategy[Filter] = st.one_of(
    st.builds(AnyOf, _KEYS, st.lists(_SCALARS, max_size=3).map(tuple)),
    st.builds(Range, _KEYS, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS),
    st.builds(Exists, _KEYS),
)
_FILTERS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Any_, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=4,
)
_IDS = st.sampled_from([f"id{number}" for number in range(30)])
_RECORDS = st.lists(st.tuples(_IDS, st.integers(0, 40), _METADATA), min_size=1, max_size=20)


def _vector(seed: int) -> Vectors:
    """Return a vector of small integers: equal scores occur, and zeros."""
    return np.random.default_rng(seed).integers(-2, 3, _DIMENSIONS).astype(np.float32) * (seed != 0)


class Machine(RuleBasedStateMachine):
    """Compares a collection with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Record] = {}

    @initialize(metric=st.sampled_from(Metric))
    def open(self, metric: Metric) -> None:
        self.metric = metric
        self._folder = tempfile.TemporaryDirectory()
        self._settings = self.settings(Path(self._folder.name))
        self._opened = Opened(self._settings)

    def settings(self, folder: Path) -> CollectionSettings:
        return settings_of(folder, _DIMENSIONS, self.metric, threads=2)

    def teardown(self) -> None:
        if hasattr(self, "_opened"):
            self._opened.close()
            self._folder.cleanup()

    @rule(entries=_RECORDS)
    def upsert(self, entries: list[tuple[str, int, Metadata]]) -> None:
        records = [Record(id_, _vector(seed), f"text {seed}", metadata) for id_, seed, metadata in entries]
        last = {record.id: record for record in records}
        assert self._opened.run(self._opened.collection.upsert(records)) == len(last)
        for id_ in last:
            self._known.pop(id_, None)
        # The records are as old as their last mention is.
        self._known.update((record.id, record) for record in records if last[record.id] is record)

    @rule(ids=st.lists(_IDS, max_size=5))
    def delete_ids(self, ids: list[str]) -> None:
        expected = len(set(ids) & set(self._known))
        assert self._opened.run(self._opened.collection.delete(ids)) == expected
        self._known = {id_: record for id_, record in self._known.items() if id_ not in ids}

    @rule(where=_FILTERS)
    def delete_matching(self, where: Filter) -> None:
        kept = {id_: each for id_, each in self._known.items() if not matches(where, each.metadata or {})}
        assert self._opened.run(self._opened.collection.delete(where=where)) == len(self._known) - len(kept)
        self._known = kept

    @rule(
        seeds=st.lists(st.integers(0, 60), min_size=1, max_size=7), top_k=st.integers(1, 12), where=st.none() | _FILTERS
    )
    def search(self, seeds: list[int], top_k: int, where: Filter | None) -> None:
        queries = np.stack([_vector(seed) for seed in seeds])
        found = self._opened.run(self._opened.collection.search(queries, top_k, where=where, include_vectors=True))
        for query, hits in zip(queries, found, strict=True):
            self._check(query, hits, top_k, where)

    def _check(self, query: Vectors, hits: list[Hit], top_k: int, where: Filter | None) -> None:
        records = [each for each in self._known.values() if where is None or matches(where, each.metadata or {})]
        vectors = np.array([each.vector for each in records], dtype=np.float32).reshape(-1, _DIMENSIONS)
        scores = expected_scores(vectors, query, self.metric)
        assert np.allclose([hit.score for hit in hits], np.sort(scores)[::-1][:top_k], atol=1e-6)
        by_id = dict(zip((each.id for each in records), scores, strict=True))
        assert len({hit.id for hit in hits}) == len(hits)
        for hit in hits:
            record = self._known[hit.id]
            assert np.isclose(hit.score, by_id[hit.id], atol=1e-6)
            assert (hit.text, hit.metadata) == (record.text, record.metadata)
            assert np.array_equal(_array(hit.vector), _array(record.vector))

    @rule()
    def reopen(self) -> None:
        self._opened.close()
        self._opened = Opened(self._settings)

    @precondition(lambda self: self._known)
    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self._known)))
        found = self._opened.run(self._opened.collection.get([id_, "unknown"], include_vectors=True))
        assert found[0] is not None
        assert np.array_equal(_array(found[0].vector), _array(self._known[id_].vector))
        assert found[0].metadata == self._known[id_].metadata
        assert found[1] is None

    @invariant()
    def counts_rows(self) -> None:
        if hasattr(self, "_opened"):
            assert self._opened.run(self._opened.collection.info()).rows == len(self._known)


def _array(vector: Vectors | None) -> Any:
    assert vector is not None
    return vector


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
