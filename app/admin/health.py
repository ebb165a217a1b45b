"""Route /health (for people), /health/live (for process supervisors) and /health/ready (for load balancers)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, create_model

from app.admin.extension_part import ExtensionPart
from app.admin.facts import LIVE_BODIES, DeviceDescription, describe_device
from app.admin.progress import WorkDescription, visible_works
from app.admin.views import Views
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.lifecycle import ServerLifecycle
from app.protocols.shared.bodies import ResponseBody
from frameworks.core.devices import DeviceManager
from frameworks.models.versions.states import ModelState
from memory.host import resident_bytes


class Health(ResponseBody):
    """State of the server. `status`: healthy, starting, degraded (a model or collection failed) or draining."""

    status: str
    models: dict[str, str]
    progress: list[WorkDescription] = Field(description="Long work that runs now, the oldest first.")
    metrics: dict[str, float]
    devices: list[DeviceDescription]
    max_connections: int = Field(
        description="HTTP connections that the server accepts; fewer than configured where the system permits fewer "
        "open files."
    )
    uptime_seconds: float


class HealthApi:
    """Handlers of the routes."""

    def __init__(
        self,
        views: Views,
        devices: DeviceManager,
        lifecycle: ServerLifecycle,
        memory_bytes: Callable[[], int] = resident_bytes,
        parts: Sequence[ExtensionPart] = (),
        connections: Connections | None = None,
    ) -> None:
        """`memory_bytes`: returns the memory of the server. It is called in a thread."""
        self._views = views
        self._devices = devices
        self._memory_bytes = memory_bytes
        self._lifecycle = lifecycle
        self._parts = parts
        self._connections = Connections(ConnectionBounds()) if connections is None else connections

    def router(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        add = router.add_api_route
        add_route(router, "GET", "/health", self.health, "State of the server", _with_parts(self._parts))
        add("/health/live", self.live, methods=["GET"], summary="Whether the process is alive")
        add("/health/ready", self.ready, methods=["GET"], summary="Whether the server is ready",
            responses={503: {"description": "The server loads start-up models, or it drains."}})  # fmt: skip
        return router

    async def health(self, request: Request) -> Response:
        """Show the state of the server, its devices, and the models and requests that the key may see."""
        # In a thread: a GPU's driver may be slow to report free memory.
        devices, memory_bytes = await asyncio.to_thread(lambda: (self._devices.devices(), self._memory_bytes()))
        models, counts = self._views.for_request(request)
        await counts.refresh()
        slots = models.slots
        states = {slot.name: slot.state.value for slot in slots}
        others = {part.health_key: part.states(models.principal) for part in self._parts if part.health_key}
        status = self._lifecycle.status(slots)
        if status == "healthy" and any("failed" in each.values() for each in others.values()):
            status = "degraded"
        requests = list(counts.requests())
        return json_response(
            {
                "status": status,
                "models": states,
                **{key: each for key, each in others.items() if each},
                "progress": visible_works(models),
                "metrics": {
                    "requests_total": sum(count for _, count in requests),
                    "requests_failed_total": sum(count for (_, _, status, _), count in requests if status >= 400),
                    "inflight": counts.all_in_flight(slots),
                    "models_ready": sum(state == ModelState.READY for state in states.values()),
                    "resident_memory_bytes": memory_bytes,
                },
                "devices": list(map(describe_device, devices)),
                "max_connections": self._connections.most,
                "uptime_seconds": round(self._lifecycle.uptime_s, 3),
            }
        )

    async def live(self) -> Response:
        """Return 200 while the process is alive."""
        return json_response(LIVE_BODIES["/health/live"])

    async def ready(self, request: Request) -> Response:
        """Return 200 when every start-up model is ready; 503 before, and during the drain.

        Only models that the key may use are named.
        """
        pending = self._lifecycle.pending_models()
        if self._lifecycle.is_draining or pending:
            models = self._views.for_request(request).models
            named = [name for name in pending if models.get(name) is not None]
            return json_response({"status": self._lifecycle.status(), "waits_for": named}, 503)
        return json_response({"status": "ready"})


def _with_parts(parts: Sequence[ExtensionPart]) -> type[Health]:
    """Return Health with the states of the parts of extensions, each only where there are any."""
    added: dict[str, Any] = {
        part.health_key: (dict[str, str] | None, Field(None, description=part.health_description))
        for part in parts
        if part.health_key
    }
    return create_model("Health", __base__=Health, __doc__=Health.__doc__, **added)
