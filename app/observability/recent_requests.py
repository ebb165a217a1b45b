"""Keep the latest inference requests of each tenant, without their bodies, for `GET /requests` and the web page."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

KEPT_REQUESTS = 200
"""Per tenant."""
MAX_PATH, MAX_NAME, MAX_TEXT = 256, 128, 1000
"""Characters that are kept of a path, of the name of an adapter, and of the text of an error."""
_MOST_TENANTS = 64


class FinishedRequest(NamedTuple):
    """One inference request after its response. Times in seconds; `ended_s`: time.perf_counter.

    `worker` and `number`: of its process, and there of the request, from 1. `batch_rows` and `cache_hit`: as in
    Timings. Bytes are those of the bodies.
    """

    worker: int
    number: int
    ended_s: float
    request_id: str
    tenant: str
    key_id: str
    method: str
    path: str
    model: str
    version: str
    adapter: str
    status: int
    code: str
    error: str
    decode_s: float
    queue_s: float
    compute_s: float
    encode_s: float
    total_s: float
    batch_rows: int
    cache_hit: bool | None
    request_bytes: int
    response_bytes: int


class _ByTenant(dict[str, deque[tuple[int, tuple[Any, ...]]]]):
    """The latest requests of each tenant: numbers and fields. A new tenant replaces the one that is idle longest."""

    def __init__(self, kept: int, most_tenants: int) -> None:
        super().__init__()
        self._kept = kept
        self._most_tenants = most_tenants

    def __missing__(self, tenant: str) -> deque[tuple[int, tuple[Any, ...]]]:
        if len(self) >= self._most_tenants:
            del self[min(self, key=lambda name: self[name][-1][0])]
        self[tenant] = deque(maxlen=self._kept)
        return self[tenant]


_ID = FinishedRequest._fields.index("request_id") - 2
"""Within the fields after `number`."""


class RecentRequests:
    """The requests of this process. Owned by the event loop.

    Its memory is bounded: the tenants with the latest requests are kept, and of each the same number of requests. The
    observer adds to `last_number` and `by_tenant`, without a call for each request.
    """

    def __init__(self, worker: int = 0, kept: int = KEPT_REQUESTS, most_tenants: int = _MOST_TENANTS) -> None:
        """`worker`: number of this process."""
        self._worker = worker
        self.by_tenant = _ByTenant(kept, most_tenants)
        self.last_number = 0
        """Of the latest request; 0 before the first one."""

    def latest(
        self,
        tenant: str | None = None,
        after: int = 0,
        most: int = KEPT_REQUESTS,
        request_id: str | None = None,
    ) -> list[FinishedRequest]:
        """Return requests, newest first. `tenant` None: of all. `after`: only those with a greater number.

        `most`: of each tenant. `request_id`: only those with this id; senders may use one again. None: of any id.
        """
        names = list(self.by_tenant) if tenant is None else [tenant]
        found: list[tuple[int, tuple[Any, ...]]] = []
        for name in names:
            least = len(found) + most
            for request in reversed(self.by_tenant.get(name, ())):
                if request[0] <= after or len(found) == least:
                    break
                if request_id is None or request[1][_ID] == request_id:
                    found.append(request)
        found.sort(key=lambda request: request[0], reverse=True)
        return [FinishedRequest(self._worker, number, *fields) for number, fields in found]


def cut(text: str, most: int) -> str:
    """Return the beginning of a text that a caller may have made long."""
    return text if len(text) <= most else text[: most - 1] + "…"


def newest(requests: Iterable[FinishedRequest], most: int = KEPT_REQUESTS) -> list[FinishedRequest]:
    """Return the newest requests of processes on one machine, newest first."""
    return sorted(requests, key=lambda request: (request.ended_s, request.number), reverse=True)[:most]


def unix_offset_s() -> float:
    """Return what has to be added to time.perf_counter for Unix time, by the system's clock of now."""
    return time.time() - time.perf_counter()
