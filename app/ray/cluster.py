"""Connect to a Ray cluster, or start one on this machine that lasts after this process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray

_START_S = 120.0


class CannotConnectError(Exception):
    """No cluster was reached or started; the message has the reason."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect within the block. `address`: host:port; None: RAY_ADDRESS, else the cluster of this machine.

    Raises CannotConnectError.
    """
    if address is None and not os.environ.get("RAY_ADDRESS"):
        _ensure_local()
    try:
        ray.init(address=address or "auto", log_to_driver=False, configure_logging=False, namespace="roundhouse")
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "this machine"
        raise CannotConnectError(f"address: expected a Ray cluster at {where}, got none ({error})") from error
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
        raise CannotConnectError(f"cannot start a Ray cluster: {done.stderr.strip() or done.stdout.strip()}")
