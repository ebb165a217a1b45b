"""Check whether the server of this container is ready: exit status 0 if /health/ready answers 200, else 1."""

import http.client
import os
import ssl
import sys

_CONNECT_TO = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_TIMEOUT_S = 4


def main() -> int:
    """Request /health/ready at the address of the image's environment."""
    host = os.environ.get("ROUNDHOUSE_SERVER__HOST", "127.0.0.1")
    port = int(os.environ.get("ROUNDHOUSE_SERVER__PORT", "8080"))
    connection: http.client.HTTPConnection | None = None
    try:
        connection = _connection(_CONNECT_TO.get(host, host), port)
        connection.request("GET", "/health/ready")
        response = connection.getresponse()
        print(response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no response from {host}:{port}: {error}")
        return 1
    finally:
        if connection is not None:
            connection.close()
    return 0 if response.status == http.client.OK else 1


def _connection(host: str, port: int) -> http.client.HTTPConnection:
    """Return a connection with TLS if the server has a certificate. Raises OSError for a file that cannot be read."""
    certificate = os.environ.get("ROUNDHOUSE_SERVER__TLS_CERTIFICATE")
    if certificate is None:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    # The address is this container's own: there is nothing to verify, and its name is not in the certificate.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if "ROUNDHOUSE_SERVER__TLS_CLIENT_CA" in os.environ:
        context.load_cert_chain(certificate, os.environ.get("ROUNDHOUSE_SERVER__TLS_KEY"))
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


if __name__ == "__main__":
    sys.exit(main())
