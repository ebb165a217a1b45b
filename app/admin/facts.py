"""Facts that several routes show: that the process is alive, and its devices."""

from typing import Any

from app.protocols.shared.bodies import ResponseBody
from frameworks.core.devices import Device

LIVE_BODIES = {"/health/live": {"status": "live"}, "/v2/health/live": {"live": True}}
"""The body of each route that says whether the process is alive."""


class DeviceDescription(ResponseBody):
    """A device and its memory, measured for this response."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


def describe_device(device: Device) -> dict[str, Any]:
    """Return the DeviceDescription of a device."""
    return {
        "id": device.id,
        "name": device.name,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
    }
