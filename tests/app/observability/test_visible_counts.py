"""Test that tenants see their own counts, and that those of all tenants add up to an operator's."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.auth.principal import ANONYMOUS, Principal
from app.observability.metrics import Observer, RequestRecord
from app.observability.visible_counts import Counts
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch.batcher import BatchLimits

TENANTS = [Principal(Tenant(name)) for name in "abc"]
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(TENANTS), st.sampled_from(["", "m", "n"]), st.sampled_from([200, 404, 429, 503]),
        st.sampled_from([None, True, False]), st.integers(0, 9),
    ),
    max_size=30,
)  # fmt: skip


def observed(requests: list[tuple[Principal, str, int, bool | None, int]]) -> Observer:
    observer = Observer("none", 1000)
    for principal, model, status, is_hit, seconds in requests:
        timings = Timings(1.0, 2.0, 3.0, 4.0, cache_hit=is_hit)
        code = "" if status == 200 else "code"
        record = RequestRecord("id", "POST", "/", float(seconds), model, "1", status, code, timings, principal)
        observer.record_inference(record, 10.0 + seconds)
    return observer


def numbers(counts: Counts) -> dict[Any, float]:
    """Return every count by a name of it."""
    found: dict[Any, float] = {}
    for model in ("", "m", "n"):
        total, failed = counts.completed(model)
        found |= {(model, "total"): total, (model, "failed"): failed}
        requests = counts.of_version(model, "1")
        if requests is not None:
            found |= {(model, "version", i): number for i, number in enumerate(astuple(requests)[:-1])}
    for model, times in counts.times().items():
        for name in ("request_seconds", "queue_seconds", "compute_seconds"):
            histogram = getattr(times, name)
            found |= {(model, name, i): number for i, number in enumerate([*histogram.counts, histogram.total])}
    found |= {key[:3]: 0.0 for key, _ in counts.requests()}
    for key, count in counts.requests():
        found[key[:3]] += count
    for (code, _), count in counts.rejected():
        found[code] = found.get(code, 0) + count
    return {key: number for key, number in found.items() if number}


@given(REQUESTS)
def test_counts_of_tenants_add_up(requests: list[tuple[Principal, str, int, bool | None, int]]) -> None:
    observer = observed(requests)
    added: dict[Any, float] = {}
    for tenant in TENANTS:
        own = numbers(Counts(observer, tenant))
        assert own == numbers(Counts(observed([each for each in requests if each[0] is tenant]), ANONYMOUS))
        for key, number in own.items():
            added[key] = added.get(key, 0) + number
    assert added == numbers(Counts(observer, ANONYMOUS))


def test_counts_of_hidden_models_are_left_out() -> None:
    operator = Principal(Tenant("ops"), patterns=[("m",)], is_operator=True)
    counts = Counts(observed([(TENANTS[0], name, 200, None, 1) for name in ("", "m", "n")]), operator)
    assert not counts.are_of_server
    assert {key[0] for key, _ in counts.requests()} == {"", "m"}
    assert counts.times().keys() == {"", "m"}
    assert counts.completed("n") == (0, 0)


def test_places_and_last_use_are_those_of_tenant() -> None:
    entry = OnnxModelEntry(name="m", path=Path("files"))
    slot = ModelSlot(ModelIdentity("onnx", entry, BatchLimits(max_rows=8), ageing_s=1.0), Path("files"))
    server = RequestLimit("the server", None, None)
    held = [Permit(server, TENANTS[i].tenant) for i in (0, 0, 1)]
    for permit, places in zip(held, (1, 3, 2), strict=True):
        permit.queue(slot.requests, places)
        slot.active._holders.loaded.add(permit)
    held[0].begin()
    observer = observed([(TENANTS[0], "m", 200, None, 5)])
    views = [Counts(observer, principal) for principal in (*TENANTS, ANONYMOUS)]
    assert [counts.in_flight([slot]) for counts in views] == [2, 1, 0, 3]
    assert [counts.queue_depth(slot) for counts in views] == [3, 2, 0, 5]
    assert [counts.seconds_unused(slot) is not None for counts in views] == [True, False, False, False]
