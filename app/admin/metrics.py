"""GET /metrics: the plain numbers that were added up, shaped into Prometheus families when they are scraped."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Response

from app.admin.generation_metrics import generation_families
from app.inference.response_cache import ResponseCache
from app.observability.integrity_watch import IntegrityWatch
from app.observability.loop_watch import LoopWatch
from app.observability.metrics import Histogram, ModelMetrics, Observer
from frameworks.devices import Device
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelState
from frameworks.scheduling.admission import RequestLimit
from memory.tensor_pool import TensorPool


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """Where the stats are added up."""

    manager: MLFrameworkManager
    requests: RequestLimit
    observer: Observer
    response_cache: ResponseCache
    loop_watch: LoopWatch
    integrity: IntegrityWatch
    pool: TensorPool


class MetricsApi:
    """The handler of /metrics."""

    def __init__(self, counted: CounterTotals) -> None:
        self._counted = counted

    def router(self) -> APIRouter:
        router = APIRouter(tags=["metrics"])
        router.add_api_route(
            "/metrics",
            self.metrics,
            methods=["GET"],
            responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text"}},
        )
        return router

    async def metrics(self) -> Response:
        """Every metric, in Prometheus' text format."""
        # Imported at the first scrape: start-up does not wait for it.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        devices = await asyncio.to_thread(self._counted.manager.devices.devices)
        page = generate_latest(_Scrape(self._counted, devices))  # type: ignore[arg-type]
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})


class _Scrape:
    """Looks like a registry to prometheus_client: `collect` gives the families as they stand now."""

    def __init__(self, counted: CounterTotals, devices: list[Device]) -> None:
        self._counted = counted
        self._devices = devices

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "roundhouse_requests", "Requests to models, by HTTP status.", labels=["model", "version", "code"]
        )
        for (model, version, status), count in self._counted.observer.requests.items():
            requests.add_metric([model, version, str(status)], count)
        yield requests
        rejected = CounterMetricFamily(
            "roundhouse_rejected", "Requests refused for want of room or of a ready model.", labels=["reason"]
        )
        for reason, count in self._counted.observer.rejected.items():
            rejected.add_metric([reason], count)
        yield rejected

        inflight = GaugeMetricFamily("roundhouse_inflight", "Requests to models that are being answered.")
        inflight.add_metric([], self._counted.observer.inflight)
        yield inflight
        yield self._queue_limits()
        yield from self._of_models()
        yield from self._histograms()
        yield self._batch_sizes()
        yield from generation_families(self._counted.manager.slots, self._counted.observer.generations)
        yield from self._cache()
        yield from self._tensor_pool()
        lag = HistogramMetricFamily(
            "roundhouse_event_loop_lag_seconds", "By how much ticks of the event loop's clock were late."
        )
        watched = self._counted.loop_watch.lag_seconds
        lag.add_metric([], buckets=watched.cumulated(), sum_value=watched.total)
        yield lag

        memory = GaugeMetricFamily("roundhouse_device_memory_bytes", "Memory of a device.", labels=["device", "kind"])
        for device in self._devices:
            memory.add_metric([device.id, "total"], device.total_bytes)
            memory.add_metric([device.id, "free"], device.free_bytes)
        yield memory
        yield from self._lent()

    def _lent(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        budget = self._counted.manager.residency.ledger.budget
        lent = GaugeMetricFamily(
            "roundhouse_model_budget_bytes",
            "Of a device's memory what all models may take, and what they have been promised.",
            labels=["device", "kind"],
        )
        for device in budget.devices:
            lent.add_metric([device, "limit"], budget.limit(device))
            lent.add_metric([device, "reserved"], budget.used(device))
        yield lent
        shadows = CounterMetricFamily(
            "roundhouse_shadow_requests",
            "Copies of requests to a shadow version, by how its answer compares.",
            labels=["model", "version", "outcome"],
        )
        for labels, count in self._counted.observer.shadow_outcomes.items():
            shadows.add_metric(list(labels), count)
        yield shadows
        failures = CounterMetricFamily(
            "roundhouse_integrity_failures", "Looks that found memory lent that nobody holds, or held that is not lent."
        )
        failures.add_metric([], self._counted.integrity.failures)
        yield failures

    def _queue_limits(self) -> object:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "roundhouse_queue_limit",
            'How many requests may wait: for a model with a bound of its own, and with model="" for all together.',
            labels=["model"],
        )
        limits = {"": self._counted.requests} | {slot.name: slot.requests for slot in self._counted.manager.slots}
        for model, limit in limits.items():
            if limit.max_queue_size is not None:
                family.add_metric([model], limit.max_queue_size)
        return family

    def _of_models(self) -> Iterable[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        depth = GaugeMetricFamily(
            "roundhouse_queue_depth", "Requests that wait: decoded, nothing of them runs yet.", labels=["model"]
        )
        state = GaugeMetricFamily(
            "roundhouse_model_state", "1 for the state that a model is in.", labels=["model", "state"]
        )
        memory = GaugeMetricFamily(
            "roundhouse_model_memory_bytes", "What a model's loaded versions take, as measured.", labels=["model"]
        )
        loads = CounterMetricFamily("roundhouse_model_loads", "Loads of a model that succeeded.", labels=["model"])
        evictions = CounterMetricFamily(
            "roundhouse_model_evictions", "Times that a model left to make room.", labels=["model"]
        )
        split = CounterMetricFamily(
            "roundhouse_batches_split", "Batches that did not fit into memory and were halved.", labels=["model"]
        )
        for slot in self._counted.manager.slots:
            depth.add_metric([slot.name], slot.queue_depth)
            for each in ModelState:
                state.add_metric([slot.name, each.value], slot.state is each)
            memory.add_metric([slot.name], slot.memory_bytes)
            loads.add_metric([slot.name], slot.loads)
            evictions.add_metric([slot.name], self._counted.manager.residency.ledger.evictions[slot.name])
            split.add_metric([slot.name], slot.batches.split.total())
        return depth, state, memory, loads, evictions, split

    def _cache(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kept, observer = self._counted.response_cache, self._counted.observer
        for name, documentation, counts in (
            (
                "hits",
                "Requests answered from the cache, or along with an equal one.",
                observer.cache_hits,
            ),
            ("misses", "Requests of models with a cache that had to be run.", observer.cache_misses),
        ):
            family = CounterMetricFamily(f"roundhouse_cache_{name}", documentation, labels=["model"])
            for model, count in counts.items():
                family.add_metric([model], count)
            yield family
        size = GaugeMetricFamily("roundhouse_cache_bytes", "What the cache holds, questions and answers.")
        size.add_metric([], kept.size_bytes)
        yield size
        evictions = CounterMetricFamily("roundhouse_cache_evictions", "Answers dropped for want of room.")
        evictions.add_metric([], kept.evictions)
        yield evictions

    def _tensor_pool(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._counted.pool.stats()
        size = GaugeMetricFamily("roundhouse_tensor_pool_bytes", "Pooled buffers.", labels=["device", "state"])
        for device, of_device in stats.items():
            size.add_metric([device, "leased"], of_device.leased_bytes)
            size.add_metric([device, "idle"], of_device.idle_bytes)
        yield size
        for name, documentation, total in (
            ("tensor_pool_hits", "Leases of an idle buffer.", sum(each.hits for each in stats.values())),
            ("tensor_pool_misses", "Leases of a new buffer.", sum(each.misses for each in stats.values())),
            ("gc_runs", "Times that idle buffers were dropped.", sum(each.gc_runs for each in stats.values())),
            ("gc_freed_bytes", "Idle buffers dropped.", sum(each.freed_bytes for each in stats.values())),
        ):
            family = CounterMetricFamily(f"roundhouse_{name}", documentation)
            family.add_metric([], total)
            yield family

    def _batch_sizes(self) -> object:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily("roundhouse_batch_size", "Rows of the batches that ran.", labels=["model"])
        for slot in self._counted.manager.slots:
            sizes = slot.batches.sizes
            buckets = [
                (str(bound), float(sum(n for rows, n in sizes.items() if rows <= bound))) for bound in ROW_BUCKETS
            ]
            family.add_metric(
                [slot.name],
                buckets=[*buckets, ("+Inf", float(sizes.total()))],
                sum_value=sum(rows * n for rows, n in sizes.items()),
            )
        return family

    def _histograms(self) -> Iterator[object]:
        from prometheus_client.core import HistogramMetricFamily

        parts: tuple[tuple[str, str, Callable[[ModelMetrics], Histogram]], ...] = (
            ("request", "From the request's first byte to its answer's last.", lambda m: m.request_seconds),
            ("queue", "In the queue.", lambda m: m.queue_seconds),
            ("compute", "On the device.", lambda m: m.compute_seconds),
        )
        for name, documentation, part in parts:
            family = HistogramMetricFamily(
                f"roundhouse_{name}_seconds", f"{documentation} Answered requests.", labels=["model"]
            )
            for model, metrics in self._counted.observer.models.items():
                family.add_metric([model], buckets=part(metrics).cumulated(), sum_value=part(metrics).total)
            yield family


ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
