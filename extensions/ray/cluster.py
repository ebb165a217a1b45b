"""Connect this process to a Ray cluster, start one on this machine where there is none, or say why that failed."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import ray
from ray.exceptions import AuthenticationError

_START_S = 120.0
# In the lines of Ray's libraries; its exception does not say why no cluster answered.
_WRONG_TOKEN = b"InvalidAuthToken"
_PROBE_S = 10.0
_ADVICE = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH for a file"


class CannotConnect(ConnectionError):
    """No cluster was reached or started. The message names the field, what was expected, and the reason."""


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


def connect(field: str, where: str, **options: Any) -> None:
    """Call `ray.init` with these options; the lines that Ray's libraries print are hidden.

    `field`, `where`: the argument with the address, and the address, for the message. Run it in the main thread, as Ray
    sets signal handlers. Raises CannotConnect, at once where no process listens at the address.
    """
    _check_listening(field, where, options.get("address"))
    with _captured_stderr() as printed:
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises Exception itself where a node does not start in time
            printed.seek(0)
            if isinstance(error, AuthenticationError) or _WRONG_TOKEN in printed.read():
                given = "another one" if os.environ.get("RAY_AUTH_MODE") == "token" else "none"
                given = "none" if isinstance(error, AuthenticationError) else given
                message = f"RAY_AUTH_TOKEN: expected the token of the Ray cluster at {where}, got {given}"
                raise CannotConnect(f"{message}; {_ADVICE}") from error
            raise CannotConnect(f"{field}: expected a Ray cluster at {where}, got none ({error})") from error


def _check_listening(field: str, where: str, address: str | None) -> None:
    """Raise CannotConnect where the host and port of an address accept no connection. Ray would try for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"expected a Ray cluster at {where}, got no connection ({reason})"
        raise CannotConnect(f"{field}: {message}; start it, or name another address") from error


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """Write standard error of this process, also of its C++ libraries, to a temporary file within the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)
