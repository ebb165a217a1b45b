"""Cells are the differences of the counts between two readings."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin.monitoring import sample_cells
from app.admin.monitoring.sample_cells import (
    ANSWERED,
    BATCHES,
    BUCKETS,
    COMPLETED,
    COMPUTE_S,
    FAILED,
    INFLIGHT,
    LATENCY_S,
    OWN_INFLIGHT,
    OWN_QUEUE,
    PROMPT_TOKENS,
    QUEUE,
    QUEUE_S,
    REFUSED,
    ROWS,
    TOKENS,
    Cell,
    CellReader,
    Cells,
)
from app.observability.metrics import Observer
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.steps.token_feed import TenantTokens
from tests.app.admin.monitoring.observed import TENANTS, make_slot, observe

REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["", "m", "n"]), st.sampled_from(["red", "blue"]), st.sampled_from([200, 400, 503]),
        st.sampled_from([0.0004, 0.002, 0.5, 100.0]),
    ),
    max_size=12,
)  # fmt: skip


def by_key(read: Cells) -> dict[Cell, Any]:
    return dict(zip(read.keys, read.values, strict=True))


@given(st.lists(REQUESTS, max_size=4))
def test_cells_add_up_to_counts(readings: list[list[tuple[str, str, int, float]]]) -> None:
    observer, reader = Observer("none", 1000), CellReader()
    for requests in readings:
        expected: dict[tuple[str, str], Counter[str]] = {}
        quarters_s: dict[tuple[str, str], float] = {}
        for model, tenant, status, total_s in requests:
            observe(observer, model, tenant, status, total_s)
            counts = expected.setdefault((model, tenant), Counter())
            counts.update(completed=1, failed=status >= 400, refused=status == 503, answered=status == 200)
            quarter_s = total_s / 4 if status == 200 else 0.0
            quarters_s[model, tenant] = quarters_s.get((model, tenant), 0.0) + quarter_s
        found = by_key(reader.read(observer, []))
        assert found.keys() == expected.keys()
        for key, counts in expected.items():
            cell = found[Cell(*key)]
            numbers = [cell[COMPLETED], cell[FAILED], cell[REFUSED], cell[ANSWERED]]
            assert numbers == [counts["completed"], counts["failed"], counts["refused"], counts["answered"]]
            assert cell[BUCKETS:].sum() == counts["answered"]
            parts = [cell[LATENCY_S] / 4, cell[QUEUE_S], cell[COMPUTE_S] / 2]
            # float32 holds 24 bits.
            np.testing.assert_allclose(parts, [quarters_s[key]] * 3, rtol=1e-5, atol=1e-6)


def test_unchanged_counts_have_no_cell() -> None:
    observer, reader = Observer("none", 1000), CellReader()
    observe(observer)
    assert len(reader.read(observer, []).keys) == 1
    again = reader.read(observer, [make_slot("m")])
    assert (again.keys, again.values.shape[0]) == ((), 0)


def test_counts_of_deleted_model_start_again() -> None:
    observer, reader = Observer("none", 1000), CellReader()
    for _ in range(5):
        observe(observer)
    reader.read(observer, [])
    observer.forget("m")
    observe(observer, total_s=2.0)
    cell = by_key(reader.read(observer, []))[Cell("m", "red")]
    assert (cell[COMPLETED], cell[ANSWERED], cell[LATENCY_S]) == (1, 1, 2)
    observer.forget("m")
    assert not reader.read(observer, []).keys
    assert not reader._requests
    assert not reader._times


def test_model_has_batches_and_tokens() -> None:
    slot, reader, observer = make_slot("m"), CellReader(), Observer("none", 1000)
    runs = slot.identity.runs["1"]
    runs.batches.ran(4, 0.1)
    runs.generated.steps.ran(2, 0.1)
    runs.generated.tokens, runs.generated.prompt_tokens = 10, 100
    runs.generated.tenants["red"] = TenantTokens(prompt=30, generated=4)
    found = by_key(reader.read(observer, [slot]))
    assert (found[Cell("m", None)][BATCHES], found[Cell("m", None)][ROWS]) == (2, 6)
    tokens = {key.tenant: (cell[TOKENS], cell[PROMPT_TOKENS]) for key, cell in found.items() if key.tenant is not None}
    assert tokens == {"": (6, 70), "red": (4, 30)}
    runs.generated.tokens += 1
    found = by_key(reader.read(observer, [slot]))
    assert {key: cell[TOKENS] for key, cell in found.items()} == {Cell("m", ""): 1}
    reader.read(observer, [])
    assert (reader._batches, reader._tokens, reader._all_tokens) == ({}, {}, {})


def test_requests_in_flight_are_of_model_and_tenant() -> None:
    slot, reader, observer = make_slot("m"), CellReader(), Observer("none", 1000)
    server = RequestLimit("the server", None, None)
    held = [Permit(server, TENANTS[name].tenant) for name in ("red", "red", "blue")]
    for permit, places in zip(held, (1, 3, 2), strict=True):
        permit.queue(slot.requests, places)
        slot.active._holders.loaded.add(permit)
    found = by_key(reader.read(observer, [slot]))
    assert (found[Cell("m", None)][INFLIGHT], found[Cell("m", None)][QUEUE]) == (3, 6)
    own = {key.tenant: (cell[OWN_INFLIGHT], cell[OWN_QUEUE]) for key, cell in found.items() if key.tenant}
    assert own == {"red": (2, 4), "blue": (1, 2)}


def test_busiest_cells_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cells, "MOST_CELLS", 3)
    observer = Observer("none", 1000)
    for number in range(6):
        for _ in range(number + 1):
            observe(observer, tenant=f"t{number}")
    read = CellReader().read(observer, [])
    assert [key.tenant for key in read.keys] == ["t5", "t4", "t3"]
    assert read.values.shape[0] == 3


def test_equal_keys_are_one_object() -> None:
    observer, reader = Observer("none", 1000), CellReader()
    observe(observer)
    first = reader.read(observer, []).keys
    observe(observer)
    assert reader.read(observer, []).keys is first
