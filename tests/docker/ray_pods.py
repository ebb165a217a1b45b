"""Read the groups of pods of a RayService, with what KubeRay adds to them."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

_AGENT, _METRICS = 52365, 8080


def groups_of(service: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the groups by name, with the parameters of `ray start` that KubeRay adds."""
    cluster = deepcopy(service["spec"]["rayClusterConfig"])
    found = {"head": cluster["headGroupSpec"]} | {each["groupName"]: each for each in cluster["workerGroupSpecs"]}
    added = {"block": "true", "dashboard-agent-listen-port": str(_AGENT), "metrics-export-port": str(_METRICS)}
    for group in found.values():
        group["rayStartParams"] = added | group["rayStartParams"]
    return found
