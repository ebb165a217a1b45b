"""/health, /health/live, /health/ready: for people, for process supervisors, for load balancers."""

import asyncio

from fastapi import APIRouter, Response
from pydantic import BaseModel

from app.http.wire import json_answer
from app.inference.lifecycle import Lifecycle
from app.observability.metrics import Observer
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelState
from memory.host import resident_bytes


class DeviceDescription(BaseModel):
    """A device and its memory in bytes, measured for this answer."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


class Health(BaseModel):
    """`status`: healthy, starting, degraded (a model failed) or draining."""

    status: str
    models: dict[str, str]
    metrics: dict[str, float]
    devices: list[DeviceDescription]
    uptime_seconds: float


class HealthApi:
    """The handlers of /health."""

    def __init__(self, manager: MLFrameworkManager, observer: Observer, lifecycle: Lifecycle) -> None:
        self._manager = manager
        self._observer = observer
        self._lifecycle = lifecycle

    def router(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        router.add_api_route("/health", self.health, methods=["GET"], responses={200: {"model": Health}})
        router.add_api_route("/health/live", self.live, methods=["GET"])
        router.add_api_route(
            "/health/ready", self.ready, methods=["GET"], responses={503: {"description": "not yet, or draining"}}
        )
        return router

    async def health(self) -> Response:
        """What the server is doing."""
        # Measuring a GPU asks its driver, which may take its time.
        devices = await asyncio.to_thread(self._manager.devices.devices)
        states = {slot.name: slot.state.value for slot in self._manager.slots}
        requests = self._observer.requests
        return json_answer(
            {
                "status": self._lifecycle.status(),
                "models": states,
                "metrics": {
                    "requests_total": requests.total(),
                    "requests_failed_total": sum(n for (_, _, status), n in requests.items() if status >= 400),
                    "inflight": self._observer.inflight,
                    "models_ready": sum(state == ModelState.READY for state in states.values()),
                    "resident_memory_bytes": resident_bytes(),
                },
                "devices": [
                    {"id": d.id, "name": d.name, "total_bytes": d.total_bytes, "free_bytes": d.free_bytes}
                    for d in devices
                ],
                "uptime_seconds": round(self._lifecycle.uptime_s, 3),
            }
        )

    async def live(self) -> Response:
        """200 while the process works."""
        return json_answer({"status": "live"})

    async def ready(self) -> Response:
        """200 when every start-up model is ready; 503 before, and while draining."""
        waits_for = self._lifecycle.waits_for()
        if self._lifecycle.is_draining or waits_for:
            return json_answer({"status": self._lifecycle.status(), "waits_for": waits_for}, 503)
        return json_answer({"status": "ready"})
