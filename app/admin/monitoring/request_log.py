"""Read the latest requests of all processes that answer requests."""

from typing import Protocol

from app.observability.recent_requests import KEPT_REQUESTS, FinishedRequest, RecentRequests, newest

MOST_FRESH = 25
"""Requests of one tenant that are shown at once. A person cannot read more in a second."""


class RequestLog(Protocol):
    """The finished requests of the server."""

    async def latest(self, tenant: str | None, request_id: str | None = None) -> list[FinishedRequest]:
        """Return at most KEPT_REQUESTS, newest first. `tenant` None: of all tenants. `request_id` None: of any id."""
        ...

    async def fresh(self) -> list[FinishedRequest]:
        """Return those since the last call, newest first: of each tenant at most MOST_FRESH. For one caller."""
        ...


class OwnRequests:
    """The requests of one process. Implements RequestLog."""

    def __init__(self, recent: RecentRequests) -> None:
        self._recent = recent
        self._last_number = 0

    async def latest(self, tenant: str | None, request_id: str | None = None) -> list[FinishedRequest]:
        return newest(self._recent.latest(tenant, request_id=request_id), KEPT_REQUESTS)

    async def fresh(self) -> list[FinishedRequest]:
        last, self._last_number = self._last_number, self._recent.last_number
        return [] if last == self._last_number else self._recent.latest(after=last, most=MOST_FRESH)
