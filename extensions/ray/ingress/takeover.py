"""Wait in a replica that Serve stops until another one runs, so that an update leaves no time without an ingress."""

import asyncio
from typing import Any

import structlog
from ray import serve

log = structlog.get_logger(__name__)

SUCCESSOR_S = 60.0
"""Limit of the wait for another ingress. Where the cluster has no room for two, an update waits so long."""
_POLL_S = 0.25


async def wait_for_successor(application: str, deployment: str) -> None:
    """Wait until another replica of the deployment runs, or until its application is being deleted."""
    try:
        async with asyncio.timeout(SUCCESSOR_S):
            while not has_successor(await asyncio.to_thread(serve.status), application, deployment):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        log.warning("no other ingress runs; the update leaves a gap", waited_s=SUCCESSOR_S)
    except Exception:
        # Serve itself is being shut down.
        log.info("stops without another ingress", exc_info=True)


def has_successor(status: Any, application: str, deployment: str) -> bool:
    """Whether a replica that stops need not wait. `status`: of `serve.status()`."""
    found = status.applications.get(application)
    if found is None or found.status == "DELETING" or deployment not in found.deployments:
        return True
    return int(found.deployments[deployment].replica_states.get("RUNNING", 0)) > 0
