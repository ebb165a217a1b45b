"""The latest requests of each tenant, in bounded memory."""

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.auth.principal import Principal
from app.observability.metrics import Observer, RequestRecord
from app.observability.recent_requests import MAX_NAME, MAX_PATH, MAX_TEXT, FinishedRequest, RecentRequests, newest
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings

KEPT, MOST_TENANTS = 4, 3
NAMES = "abcde"


def keep(recent: RecentRequests, tenant: str, fields: tuple[Any, ...]) -> None:
    """Keep a request, as Observer does."""
    recent.last_number += 1
    recent.by_tenant[tenant].append((recent.last_number, fields))


class RecentMachine(RuleBasedStateMachine):
    """Compares with a plain list of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.recent = RecentRequests(kept=KEPT, most_tenants=MOST_TENANTS)
        self.all: list[tuple[int, str]] = []
        self.kept: dict[str, deque[int]] = {}

    @rule(tenant=st.sampled_from(NAMES))
    def add(self, tenant: str) -> None:
        number = len(self.all) + 1
        self.all.append((number, tenant))
        if tenant not in self.kept and len(self.kept) == MOST_TENANTS:
            del self.kept[min(self.kept, key=lambda name: self.kept[name][-1])]
        self.kept.setdefault(tenant, deque(maxlen=KEPT)).append(number)
        keep(self.recent, tenant, (float(number), *("",) * 8, 200, *("",) * 2, *(0.0,) * 5, 0, None, 0, 0))

    @rule(tenant=st.sampled_from([None, *NAMES]), after=st.integers(0, 30), most=st.integers(1, 5))
    def read(self, tenant: str | None, after: int, most: int) -> None:
        chosen = self.kept.items() if tenant is None else [(tenant, self.kept.get(tenant, deque()))]
        expected = [number for _, numbers in chosen for number in list(numbers)[-most:] if number > after]
        found = self.recent.latest(tenant, after, most)
        assert [each.number for each in found] == sorted(expected, reverse=True)
        assert all(each.ended_s == each.number for each in found)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.recent.by_tenant) <= MOST_TENANTS
        assert all(len(each) <= KEPT for each in self.recent.by_tenant.values())
        assert self.recent.last_number == len(self.all)


TestRecent = RecentMachine.TestCase
TestRecent.settings = settings(max_examples=30, stateful_step_count=40)


def test_request_is_found_by_id_among_newer() -> None:
    recent = RecentRequests(kept=3)
    for tenant, request_id in (("red", "a"), ("red", "b"), ("blue", "a"), ("red", "b"), ("red", "b")):
        keep(recent, tenant, (0.0, request_id, *("",) * 7, 200, *("",) * 2, *(0.0,) * 5, 0, None, 0, 0))
    assert [each.number for each in recent.latest(request_id="b", most=2)] == [5, 4]
    assert [each.number for each in recent.latest("blue", request_id="a")] == [3]
    assert [each.number for each in recent.latest(request_id="a")] == [3]  # the older one is not kept


def test_record_becomes_request_without_secrets() -> None:
    observer = Observer("none", 1000, worker=3)
    principal = Principal(Tenant("red"), "rh_key")
    record = RequestRecord("id", "POST", "/infer", 5.0, "m", "2", 503, "overloaded", Timings(0.1, 0.2, 0.3, 0.4))
    record.principal, record.credentials = principal, ((b"x-api-key", b"rh_secret"),)
    record.error, record.request_bytes, record.response_bytes, record.adapter = "full", 10, 20, "style"
    observer.record_inference(record, 1.5)
    [found] = observer.recent.latest("red")
    assert found == FinishedRequest(
        3, 1, 6.5, "id", "red", "rh_key", "POST", "/infer", "m", "2", "style", 503, "overloaded", "full",
        0.1, 0.2, 0.3, 0.4, 1.5, 0, None, 10, 20,
    )  # fmt: skip
    assert observer.recent.latest("blue") == []


def test_long_texts_are_cut() -> None:
    observer = Observer("none", 1000)
    record = RequestRecord("id", "POST", "/" + "p" * 9999, 0.0, status=404)
    record.error, record.adapter = "e" * 9999, "a" * 9999
    observer.record_inference(record, 0.1)
    [found] = observer.recent.latest()
    assert [len(found.path), len(found.adapter), len(found.error)] == [MAX_PATH, MAX_NAME, MAX_TEXT]
    assert found.error.endswith("e…")


def test_newest_merges_by_end_of_request() -> None:
    one, other = RecentRequests(0), RecentRequests(1)
    for recent, ends in ((one, (1.0, 4.0)), (other, (2.0, 3.0))):
        for end_s in ends:
            keep(recent, "", (end_s, *("",) * 8, 200, *("",) * 2, *(0.0,) * 5, 0, None, 0, 0))
    merged = newest([*one.latest(), *other.latest()], 3)
    assert [(each.worker, each.ended_s) for each in merged] == [(0, 4.0), (1, 3.0), (1, 2.0)]
