"""A tenant's view of a server is that of a server with this tenant alone; an operator sees the sum."""

from collections import Counter
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.admin.monitoring.event_encoding import describe_request, history
from app.admin.monitoring.sample_cells import CellReader
from app.admin.monitoring.sample_ring import Sample, SampleRing
from app.admin.monitoring.visibility import shows_request, view_key
from app.auth.principal import ANONYMOUS, Principal
from app.observability.metrics import Observer
from frameworks.core.tenants import Tenant
from tests.app.admin.monitoring.observed import OPERATOR, TENANTS, observe

RED_M = Principal(Tenant("red"), "limited", patterns=[("*",), ("m",)])
OPERATOR_M = Principal(Tenant("ops"), patterns=[("m",)], is_operator=True)
REQUESTS = st.lists(
    st.tuples(st.sampled_from(["", "m", "n"]), st.sampled_from(["red", "blue"]), st.sampled_from([200, 503])),
    max_size=12,
)  # fmt: skip
Request = tuple[str, str, int]


def rendered(readings: list[list[Request]], principal: Principal) -> Any:
    """Return the history of a server with these requests."""
    observer, reader, ring = Observer("none", 1000), CellReader(), SampleRing()
    for number, requests in enumerate(readings):
        for each in requests:
            observe(observer, *each)
        ring.add(Sample(2.0 * number, 2.0, *reader.read(observer, []), 7, {}, {}))
    return orjson.loads(orjson.dumps(history(ring, principal, unix_s=1000.0, now_s=0.0)))


@given(st.lists(REQUESTS, max_size=4))
def test_history_of_tenant_has_its_requests_only(readings: list[list[Request]]) -> None:
    own = [[each for each in requests if each[1] == "red"] for requests in readings]
    assert rendered(readings, TENANTS["red"]) == rendered(own, TENANTS["red"])
    visible = [[each for each in requests if each[0] != "n"] for requests in own]
    assert rendered(readings, RED_M) == rendered(visible, RED_M)
    assert "n" not in rendered(readings, RED_M)["models"]


@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_operator_sees_sum_of_tenants(readings: list[list[Request]]) -> None:
    total = rendered(readings, OPERATOR)["columns"]
    parts = [rendered(readings, principal)["columns"] for principal in TENANTS.values()]
    for name in ("requests_per_s", "failed_per_s", "refused_per_s"):
        assert total[name] == [sum(values) for values in zip(*(part[name] for part in parts), strict=True)]
    assert total["t"] == [1000.0 + 2.0 * number for number in range(len(readings))]
    assert total["inflight"] == [7] * len(readings)
    limited = rendered(readings, OPERATOR_M)
    assert sum(limited["columns"]["requests_per_s"]) == 0.5 * sum(
        count for model, count in Counter(each[0] for requests in readings for each in requests).items() if model != "n"
    )
    # The requests in flight of other models are no part of it.
    assert limited["columns"]["inflight"] == [0] * len(readings)


def test_tenant_gets_no_figures_of_batches_and_devices() -> None:
    shown = rendered([[("m", "red", 200)]], TENANTS["red"])
    assert shown["devices"] == {}
    assert "batch_rows" not in shown["columns"]
    assert "batch_rows" in rendered([[("m", "red", 200)]], OPERATOR)["columns"]


def test_equal_views_have_one_key() -> None:
    keys = [view_key(each) for each in (OPERATOR, ANONYMOUS, TENANTS["red"], TENANTS["blue"], RED_M, OPERATOR_M)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5
    assert view_key(Principal(Tenant("red"), "other key", patterns=[("*",), ("*",)])) == keys[2]
    # A key with fewer models sees the texts of its own errors.
    assert view_key(Principal(Tenant("red"), "another", patterns=[("*",), ("m",)])) != keys[4]


def test_requests_are_shown_as_their_counts() -> None:
    observer = Observer("none", 1000)
    for model, tenant in (("m", "red"), ("n", "red"), ("", "red"), ("m", "blue")):
        observe(observer, model, tenant)
    requests = observer.recent.latest()
    seen = {
        name: {(each.model, each.tenant) for each in requests if shows_request(principal, each)}
        for name, principal in {"red": TENANTS["red"], "m": RED_M, "ops": OPERATOR}.items()
    }
    assert seen["red"] == {("m", "red"), ("n", "red"), ("", "red")}
    assert seen["m"] == {("m", "red"), ("", "red")}
    assert len(seen["ops"]) == 4


def test_error_of_unknown_name_hidden_from_limited_keys() -> None:
    """It lists similar names, which its sender may use and another key of the tenant may not."""
    observer = Observer("none", 1000)
    observe(observer, "", status=404, error='did you mean "n-secret"?')
    observe(observer, "m", status=503, error="full")
    known, unknown = observer.recent.latest()
    assert describe_request(unknown, RED_M, 0.0)["error"] is None
    assert describe_request(unknown, TENANTS["red"], 0.0)["error"] == 'did you mean "n-secret"?'
    assert describe_request(known, RED_M, 0.0)["error"] == "full"
    own = unknown._replace(key_id="limited")
    assert describe_request(own, RED_M, 0.0)["error"] == 'did you mean "n-secret"?'
