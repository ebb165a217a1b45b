"""Define the part of an extension in one process of a server, for the start, `/health`, `/metrics` and the routes."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.admin.metrics.families import Family
from app.admin.views import View, Views
from app.auth.principal import Principal
from app.config import Settings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from app.inference.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server that the routes of an extension use."""

    settings: Settings
    views: Views
    lifecycle: "Lifecycle"


class ExtensionPart:
    """The base of the parts. A method that is not overridden adds nothing. Owned by the event loop."""

    health_key = ""
    """The key of `states` in the response of `/health`; empty: none."""
    health_description = ""
    """Of this key, for the OpenAPI document."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Start after the manager, and stop before it. Not called in a worker."""
        return nullcontext()

    def routers(self, parts: ServerParts) -> "Sequence[APIRouter]":
        """Return the routes that describe or change the server. Not called in a worker."""
        return ()

    def states(self, principal: Principal) -> Mapping[str, str]:
        """Return the states by name that a principal may see. With one that is `failed` the server is `degraded`."""
        return {}

    async def families(self, view: View) -> Iterable[Family]:
        """Return the metric families that a principal may see."""
        return ()

    async def applied(self) -> None:
        """Return when all workers have what was changed before the call. Called in a supervisor."""
