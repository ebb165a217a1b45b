"""Whether the server in this container is ready: the exit status is 0 if /health/ready says so, else 1."""

import http.client
import os
import sys

_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound to
_TIMEOUT_S = 4


def main() -> int:
    """Asks the server at the address that the image's environment gives it."""
    host = os.environ.get("ROUNDHOUSE_SERVER__HOST", "127.0.0.1")
    port = int(os.environ.get("ROUNDHOUSE_SERVER__PORT", "8080"))
    connection = http.client.HTTPConnection(_THIS_MACHINE.get(host, host), port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        print(answer.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer from {host}:{port}: {error}")
        return 1
    finally:
        connection.close()
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
