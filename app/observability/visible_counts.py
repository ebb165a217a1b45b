"""Add up the counts that a principal may see: those of its tenant, or for an operator those of all tenants."""

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Protocol, Self, TypeVar

from app.auth.principal import Principal
from app.observability.tallies import GenerationMetrics, Histogram, ModelMetrics, RequestTallies, VersionRequests
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion


def sequences_of(versions: Iterable[ModelVersion], tenant: str | None) -> tuple[int, int]:
    """Return the sequences of versions with a state, and the bytes of their states. `tenant`: whose; None: all."""
    found = [use for version in versions for name, use in version.sequences.items() if tenant is None or name == tenant]
    return sum(count for count, _ in found), sum(size for _, size in found)


class Summable(Protocol):
    """Counts of one tenant."""

    def merge(self, other: Self) -> None: ...


Sum = TypeVar("Sum", bound=Summable)


class Counts:
    """The counts of the models and requests that a principal sees. Made for one response."""

    def __init__(self, tallies: RequestTallies, principal: Principal) -> None:
        self._tallies = tallies
        self._principal = principal
        self.tenant = principal.counts_of
        """The tenant whose requests are counted; None: all tenants."""
        self.are_of_server = self.tenant is None and principal.sees_all
        """Whether nothing is left out."""
        self.sees_paths = principal.sees_paths
        """Whether the principal may see paths of the machine."""

    async def refresh(self) -> None:
        """Update the counts. Call it before they are shown."""
        await self._tallies.refresh()

    @property
    def of_server(self) -> RequestTallies:
        """The counts of all tenants, where `are_of_server`."""
        assert self.are_of_server
        return self._tallies

    def requests(self) -> Iterator[tuple[tuple[str, str, int, str], int]]:
        """Yield (model, version, HTTP status, tenant) and the number of completed requests."""
        return ((key, count) for key, count in self._tallies.requests.items() if self._shows(key[0], key[3]))

    def rejected(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield (code, tenant) and the number of rejected requests."""
        return ((key, count) for key, count in self._tallies.rejected.items() if self._shows("", key[1]))

    def completed(self, model: str) -> tuple[int, int]:
        """Return the number of completed requests to a model, and of those that failed."""
        return self._by_model.get(model, (0, 0))

    def in_flight(self, slots: Iterable[ModelSlot]) -> int:
        """Return the number of requests to these models that are in progress."""
        tenant = self.tenant
        if tenant is None:
            return sum(slot.requests.inflight for slot in slots)
        return sum(self._tallies.requests_of(slot, tenant)[0] for slot in slots)

    def all_in_flight(self, slots: Iterable[ModelSlot]) -> int:
        """Return as `in_flight`, where `are_of_server` with the requests that name no known model."""
        return self._tallies.inflight if self.are_of_server else self.in_flight(slots)

    def queue_depth(self, slot: ModelSlot) -> int:
        """Return the number of places in a model's queue that requests hold."""
        return slot.queue_depth if self.tenant is None else self._tallies.requests_of(slot, self.tenant)[1]

    def seconds_unused(self, slot: ModelSlot) -> float | None:
        """Return the seconds since the last request to a model; None before the first one."""
        if self.tenant is None:
            return slot.seconds_unused
        last_s = [each.last_s for key, each in self._tallies.versions.items() if key[::2] == (slot.name, self.tenant)]
        return time.perf_counter() - max(last_s) if last_s else None

    def of_version(self, model: str, version: str) -> VersionRequests | None:
        """Return the requests to a version of a model; None before the first one."""
        return self._by_version.get((model, version))

    def operations(self) -> Iterator[tuple[tuple[str, str, int, str], int]]:
        """Yield (resource, operation, HTTP status, tenant) and the number of requests, of any resource."""
        return ((key, count) for key, count in self._tallies.operations.items() if self._shows("", key[3]))

    def operation_seconds(self) -> dict[tuple[str, str], Histogram]:
        """Return the histograms of successful requests by resource and operation, of any resource."""
        found: dict[tuple[str, str], Histogram] = {}
        for (resource, operation, tenant), histogram in self._tallies.operation_seconds.items():
            if self._shows("", tenant):
                found.setdefault((resource, operation), Histogram()).merge(histogram)
        return found

    def each_times(self) -> Iterator[ModelMetrics]:
        """Yield the histograms of successful requests of each model and tenant."""
        return (each for (model, tenant), each in self._tallies.models.items() if self._shows(model, tenant))

    def times(self) -> dict[str, ModelMetrics]:
        """Return the histograms of successful requests by model."""
        return self._sums(self._tallies.models, ModelMetrics)

    def generations(self) -> dict[str, GenerationMetrics]:
        """Return the histograms of generated tokens by model."""
        return self._sums(self._tallies.generations, GenerationMetrics)

    def cache_hits(self) -> dict[str, int]:
        """Return the number of requests by model that the response cache answered."""
        return self._numbers(self._tallies.cache_hits)

    def cache_misses(self) -> dict[str, int]:
        """Return the number of requests by model that the response cache could not answer."""
        return self._numbers(self._tallies.cache_misses)

    @cached_property
    def _by_model(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for (model, _, status, _), count in self.requests():
            total, failed = found.get(model, (0, 0))
            found[model] = total + count, failed + count * (status >= 400)
        return found

    @cached_property
    def _by_version(self) -> dict[tuple[str, str], VersionRequests]:
        found: dict[tuple[str, str], VersionRequests] = {}
        for (model, version, tenant), requests in self._tallies.versions.items():
            if self._shows(model, tenant):
                found.setdefault((model, version), VersionRequests()).merge(requests)
        return found

    def _sums(self, counts: Mapping[tuple[str, str], Sum], kind: type[Sum]) -> dict[str, Sum]:
        found: dict[str, Sum] = {}
        for (model, tenant), each in counts.items():
            if self._shows(model, tenant):
                found.setdefault(model, kind()).merge(each)
        return found

    def _numbers(self, counts: Mapping[tuple[str, str], int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for (model, tenant), count in counts.items():
            if self._shows(model, tenant):
                found[model] = found.get(model, 0) + count
        return found

    def _shows(self, model: str, tenant: str) -> bool:
        """Whether a count is shown. A request that names no known model is counted for the model ""."""
        return (self.tenant is None or tenant == self.tenant) and (not model or self._principal.may_use(model))
