"""Check whether the server of this container is ready: exit status 0 if /health/ready answers 200, else 1."""

import http.client
import os
import sys

_CONNECT_TO = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_TIMEOUT_S = 4


def main() -> int:
    """Request /health/ready at the address of the image's environment."""
    host = os.environ.get("ROUNDHOUSE_SERVER__HOST", "127.0.0.1")
    port = int(os.environ.get("ROUNDHOUSE_SERVER__PORT", "8080"))
    connection = http.client.HTTPConnection(_CONNECT_TO.get(host, host), port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        response = connection.getresponse()
        print(response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no response from {host}:{port}: {error}")
        return 1
    finally:
        connection.close()
    return 0 if response.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
