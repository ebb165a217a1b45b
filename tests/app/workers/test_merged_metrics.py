"""Test the page of metrics of a server with several workers: how each family is merged, and one server's page."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from app.admin.metrics.api import MetricsApi, StatsSources
from app.admin.metrics.families import Family
from app.admin.views import View, Views
from app.auth.key_store import KeyStore, StoredKey
from app.auth.quotas import TenantLimits
from app.config.auth_settings import AuthSettings, TenantSettings
from app.http.listener.clocks import ConnectionBounds, Connections
from app.inference.model_view import ManagedModelView
from app.observability.metrics import Observer, RequestRecord
from app.observability.process_counts import ProcessCounts
from app.observability.tallies import RequestTallies
from app.observability.worker_counts import WorkerCounts
from extensions.search.part import collection_families
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from tests.app.workers.tallied import Supervisor, Worker, observe, process_of
from tests.e2e.test_health_and_metrics import FAMILIES
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop
from tests.support.managing import make_manager, register

SUM, MAX, MIN, OWN = "sum of all processes", "greatest of them", "least of them", "the supervisor's"

RULES = {
    "requests": SUM,
    "rejected": SUM,
    "auth_failures": SUM,
    "auth_keys": OWN,
    "auth_key_reloads": MAX,  # each process reads the same file
    "tenant_inflight": OWN,  # of counters that all processes share
    "tls_certificate_expiry_timestamp_seconds": MIN,  # a process may be left with the old certificate
    "tls_reloads": MAX,
    "collection_requests": OWN,  # collections need one process
    "collection_seconds": OWN,
    "collection_rows": OWN,
    "collection_bytes": OWN,
    "collection_queries": OWN,
    "collection_batches": OWN,
    "collection_waiting": OWN,
    "pipeline_step_seconds": SUM,
    "inflight": SUM,
    "queue_depth": OWN,  # shared
    "queue_limit": OWN,
    "model_state": OWN,
    "model_memory_bytes": OWN,
    "model_loads": OWN,
    "model_evictions": OWN,
    "download_bytes": OWN,
    "engine_restarts": OWN,
    "engine_processes": OWN,
    "engine_shared_memory_bytes": SUM,
    "model_budget_bytes": OWN,
    "shadow_requests": SUM,
    "integrity_failures": SUM,
    "log_lines_dropped": SUM,
    "traces_dropped": SUM,
    "workers": OWN,
    "worker_restarts": OWN,
    "connections_closed": SUM,
    "connections": OWN,  # shared
    "buffered_bytes": OWN,  # shared
    "request_seconds": SUM,
    "queue_seconds": SUM,
    "compute_seconds": SUM,
    "batch_size": OWN,  # batches and steps are reported to the manager
    "batches_split": OWN,
    "tenant_device_seconds": OWN,
    "tokens_generated": OWN,
    "prompt_tokens": OWN,
    "prefix_cache_hit_tokens": OWN,
    "preemptions": OWN,
    "proposed_tokens": OWN,
    "accepted_tokens": OWN,
    "sequences": OWN,
    "state_sequences": OWN,
    "state_bytes": OWN,
    "kv_cache_bytes": OWN,
    "time_to_first_token_seconds": SUM,
    "inter_token_seconds": SUM,
    "cache_hits": SUM,
    "cache_misses": SUM,
    "cache_bytes": OWN,  # the supervisor has the only cache
    "cache_evictions": OWN,
    "tensor_pool_bytes": SUM,
    "tensor_pool_hits": SUM,
    "tensor_pool_misses": SUM,
    "gc_runs": SUM,
    "gc_freed_bytes": SUM,
    "event_loop_lag_seconds": SUM,
    "device_memory_bytes": OWN,
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Name and labels -> value."""
Page = dict[str, Samples]
"""By family."""
MERGES: dict[str, Callable[[list[float]], float]] = {SUM: math.fsum, MAX: max, MIN: min}


@dataclass
class CacheSize:
    """A response cache's counts."""

    size_bytes: int
    evictions: int


async def added_families(view: View) -> Iterable[Family]:
    """Return the families of extensions, for a server without collections."""
    return collection_families([], view.counts)


class Pages:
    """The models of a process and its other sources. `number`: that of all counts, which differ from other numbers'."""

    def __init__(self, number: int, manager: MLFrameworkManager) -> None:
        self._manager = manager
        slot = register(manager, "m", max_queue_size=number)
        slot.identity.loads["1"] = number
        slot.requests.own_waiting = number
        runs = slot.identity.runs["1"]
        runs.batches.sizes[number] = number
        runs.batches.split[8] = number
        runs.batches.tenant_seconds["a"] = number
        runs.generated.tokens = runs.generated.prompt_tokens = number
        runs.generated.preemptions = runs.generated.prefix_hit_tokens = number
        runs.generated.proposed_tokens = runs.generated.accepted_tokens = number
        runs.restarts["hang"] = number
        manager.residency.ledger.evictions["m"] = number
        limit = RequestLimit("the server", number, None, byte_limit=ByteLimit(None))
        limit.byte_limit.hold().add(number)
        connections = Connections(ConnectionBounds())
        connections.own_open = number
        keys = KeyStore(Path("keys.toml"), AuthSettings())
        keys.by_id = {str(key): cast(StoredKey, None) for key in range(number)}
        tenant = TenantLimits(TenantSettings(name="a", max_concurrent_requests=9), limit.byte_limit)
        tenant.places.own_inflight = number
        cache = CacheSize(number, number)
        self._sources = partial(
            StatsSources,
            manager.devices,
            manager.residency.ledger,
            limit,
            cache,
            connections,
            keys,
            {"a": tenant},
            added=[added_families],
        )

    async def page(self, tallies: RequestTallies, process_counts: Callable[[], ProcessCounts]) -> Page:
        """Return the page that an operator gets."""
        views = Views(partial(ManagedModelView, self._manager), tallies)
        request = Request({"type": "http", "headers": [], "record": RequestRecord("id", "GET", "/metrics", 0.0)})
        answer = await MetricsApi(self._sources(process_counts, WorkerCounts()), views).metrics(request)
        families = list(text_string_to_metric_families(bytes(answer.body).decode()))
        assert {family.name: family.type for family in families} == FAMILIES
        return {
            family.name.removeprefix("roundhouse_"): {
                (sample.name, frozenset(sample.labels.items())): sample.value for sample in family.samples
            }
            for family in families
        }


def merged_by(rule: str, supervisor: Samples, workers: list[Samples]) -> Samples:
    if rule == OWN:
        return supervisor
    pages = [supervisor, *workers]
    return {key: MERGES[rule]([page[key] for page in pages if key in page]) for page in pages for key in page}


def test_rules_cover_all_families() -> None:
    assert {f"roundhouse_{name}" for name in RULES} == FAMILIES.keys()


@in_loop
async def test_families_are_merged_by_their_rules() -> None:
    supervisor = Supervisor(process=process_of(1))
    workers = [Worker(0, process_of(2)), Worker(1, process_of(4))]
    managers = [make_manager(FakeRegistry()) for _ in range(3)]
    pages = [Pages(number, manager) for number, manager in zip((1, 2, 4), managers, strict=True)]
    for worker in workers:
        await supervisor.join(worker)
    observers = [supervisor.observer, *(worker.observer for worker in workers)]
    for number, observer in zip((1, 2, 4), observers, strict=True):
        for tenant, status in (("a", 200), ("b", 200), ("a", 503)):
            observe(observer, number, "m", tenant, status)
        observer.inflight = number
    merged = await pages[0].page(supervisor.merged, supervisor.merged.process_counts)
    own, *others = [
        await each.page(observer, partial(process_of, number))
        for each, observer, number in zip(pages, observers, (1, 2, 4), strict=True)
    ]
    for name, rule in RULES.items():
        expected = merged_by(rule, own[name], [page[name] for page in others])
        assert merged[name] == expected, name
        if rule != OWN:
            assert merged[name] not in (own[name], {}) or rule == MIN, name
    await supervisor.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.sampled_from([200, 503])), max_size=20))
def test_merged_page_equals_that_of_one_server(requests: list[tuple[int, str, int]]) -> None:
    @in_loop
    async def run() -> None:
        supervisor, workers, observer = Supervisor(), [Worker(number) for number in range(3)], Observer("none", 1000)
        manager = make_manager(FakeRegistry())
        pages = Pages(1, manager)
        for worker in workers:
            await supervisor.join(worker)
        for steps, (number, tenant, status) in enumerate(requests, start=1):
            for each in (observer, workers[number].observer):
                observe(each, steps, "m", tenant, status)
        merged = await pages.page(supervisor.merged, supervisor.merged.process_counts)
        assert merged == await pages.page(observer, ProcessCounts)
        await supervisor.close()

    run()
