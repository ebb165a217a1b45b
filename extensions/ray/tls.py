"""TLS between ingresses and replicas, where the cluster has it: with the certificates of Ray."""

import os
import ssl


def uses_tls() -> bool:
    """Whether the cluster encrypts its connections."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def server_context() -> ssl.SSLContext | None:
    """Return the context of a replica's port; None without TLS. Raises KeyError and OSError for missing files."""
    return _context(ssl.Purpose.CLIENT_AUTH) if uses_tls() else None


def client_context() -> ssl.SSLContext | None:
    """Return the context of a connection to a replica; None without TLS. Raises as `server_context`."""
    return _context(ssl.Purpose.SERVER_AUTH) if uses_tls() else None


def _context(purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    # Both sides show a certificate of the cluster. Its names are those of nodes, and replicas are found by address.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context
