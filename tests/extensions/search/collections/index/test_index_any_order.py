"""Any order of calls gives the right hits while an index is built all the time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from extensions.search.collections.contract import CollectionSettings
from extensions.search.collections.index import compaction, inverted_lists, maintenance
from extensions.search.collections.store import segments
from frameworks.core.filters import Filter
from frameworks.core.vector_search import Hit, Vectors
from tests.extensions.search.collections.model import expected_scores, matches, settings_of
from tests.extensions.search.collections.test_any_order import Machine


@pytest.fixture(autouse=True, scope="module")
def small_index() -> Iterator[None]:
    """Make indexes of few rows, in several segments, as often as possible, and use them always."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (segments, inverted_lists, compaction):
            patch.setattr(module, "MAX_SEGMENT_ROWS", 4)
        patch.setattr(maintenance, "MIN_CHANGED_ROWS", 2)
        patch.setattr(maintenance, "MAX_READ_SHARE", 2)
        patch.setattr(maintenance, "MAX_GROWTH", 1.2)
        yield


class IndexedMachine(Machine):
    """Rows move while they are changed and searched."""

    def settings(self, folder: Path) -> CollectionSettings:
        return settings_of(folder, 5, self.metric, index_rows=8)

    def _check(self, query: Vectors, hits: list[Hit], top_k: int, where: Filter | None) -> None:
        admitted = {
            id_: each for id_, each in self._known.items() if where is None or matches(where, each.metadata or {})
        }
        assert len(hits) == min(top_k, len(admitted))
        for hit in hits:
            vector: Any = admitted[hit.id].vector
            assert np.isclose(hit.score, expected_scores(vector[None], query, self.metric)[0], atol=1e-6)
        call = self._opened.collection.search(query[None], top_k, where=where, include_vectors=True, exact=True)
        super()._check(query, self._opened.run(call)[0], top_k, where)


TestIndexed = IndexedMachine.TestCase
TestIndexed.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
