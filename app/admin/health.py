"""Route /health (for people), /health/live (for process supervisors) and /health/ready (for load balancers)."""

import asyncio

from fastapi import APIRouter, Response

from app.http.openapi import describe_responses
from app.http.responses import json_response
from app.inference.lifecycle import Lifecycle
from app.observability.metrics import Observer
from app.protocols.bodies import ResponseBody
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelState
from memory.host import resident_bytes


class DeviceDescription(ResponseBody):
    """A device and its memory, measured for this response."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


class Health(ResponseBody):
    """State of the server. `status`: healthy, starting, degraded (a model failed) or draining."""

    status: str
    models: dict[str, str]
    metrics: dict[str, float]
    devices: list[DeviceDescription]
    uptime_seconds: float


class HealthApi:
    """Handlers of the routes."""

    def __init__(self, manager: MLFrameworkManager, observer: Observer, lifecycle: Lifecycle) -> None:
        self._manager = manager
        self._observer = observer
        self._lifecycle = lifecycle

    def router(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        add = router.add_api_route
        add("/health", self.health, methods=["GET"], summary="State of the server",
            responses=describe_responses(Health))  # fmt: skip
        add("/health/live", self.live, methods=["GET"], summary="Whether the process is alive")
        add("/health/ready", self.ready, methods=["GET"], summary="Whether the server is ready",
            responses={503: {"description": "The server loads start-up models, or it drains."}})  # fmt: skip
        return router

    async def health(self) -> Response:
        """Show the state of the server, its models and its devices."""
        # In a thread: a GPU's driver may be slow to report free memory.
        devices = await asyncio.to_thread(self._manager.devices.devices)
        states = {slot.name: slot.state.value for slot in self._manager.slots}
        requests = self._observer.requests
        return json_response(
            {
                "status": self._lifecycle.status(),
                "models": states,
                "metrics": {
                    "requests_total": requests.total(),
                    "requests_failed_total": sum(count for (_, _, status), count in requests.items() if status >= 400),
                    "inflight": self._observer.inflight,
                    "models_ready": sum(state == ModelState.READY for state in states.values()),
                    "resident_memory_bytes": resident_bytes(),
                },
                "devices": [
                    {
                        "id": device.id,
                        "name": device.name,
                        "total_bytes": device.total_bytes,
                        "free_bytes": device.free_bytes,
                    }
                    for device in devices
                ],
                "uptime_seconds": round(self._lifecycle.uptime_s, 3),
            }
        )

    async def live(self) -> Response:
        """Return 200 while the process is alive."""
        return json_response({"status": "live"})

    async def ready(self) -> Response:
        """Return 200 when every start-up model is ready; 503 before, and during the drain."""
        pending = self._lifecycle.pending_models()
        if self._lifecycle.is_draining or pending:
            return json_response({"status": self._lifecycle.status(), "waits_for": pending}, 503)
        return json_response({"status": "ready"})
