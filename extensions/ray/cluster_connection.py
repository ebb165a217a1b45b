"""Connect this process to a Ray cluster, or say why that failed."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import ray
from ray.exceptions import AuthenticationError

# In the lines of Ray's libraries; its exception does not say why no cluster answered.
_WRONG_TOKEN = b"InvalidAuthToken"
_PROBE_S = 10.0
_ADVICE = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH for a file"


class CannotConnect(Exception):
    """No cluster was reached or started. The message names the field, what was expected, and the reason."""


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
