"""Connect to a Ray cluster, or start one on this machine that lasts after this process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from extensions.ray.cluster_connection import CannotConnect, connect

_START_S = 120.0


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect within the block. `address`: host:port; None: RAY_ADDRESS, else the cluster of this machine.

    Raises CannotConnect.
    """
    if address is None and not os.environ.get("RAY_ADDRESS"):
        _ensure_local()
    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
    options = {"log_to_driver": False, "configure_logging": False, "namespace": "roundhouse"}
    connect("address", where, address=address or "auto", **options)
    try:
        yield
    finally:
        ray.shutdown()


def _ensure_local() -> None:
    """Start a cluster of one node, unless this machine has a cluster."""
    from ray._private.services import find_gcs_addresses

    if find_gcs_addresses():  # type: ignore[no-untyped-call]
        return
    print("no Ray cluster runs here; starting one of one node (`ray stop` ends it)", file=sys.stderr)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    done = subprocess.run(  # noqa: S603 - our own arguments
        command, capture_output=True, text=True, timeout=_START_S, check=False
    )
    if done.returncode != 0:
        raise CannotConnect(f"cannot start a Ray cluster: {done.stderr.strip() or done.stdout.strip()}")
