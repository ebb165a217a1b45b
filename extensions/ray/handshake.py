"""Set up a connection to a replica: its address, TLS, and the handshake with the secret and the model's version."""

import hmac
import os
import ssl
from typing import Any

import msgspec
from msgspec import Struct

from frameworks.core.channel.messages import ProtocolError

PROTOCOL_VERSION = 2
MAX_HANDSHAKE_BYTES = 64 * 1024
_LENGTH_BYTES = 4
SECRET_BYTES = 32


class Address(Struct, frozen=True):
    """Where a replica listens. Serve carries it to the routers, so that only parts of the cluster know the secret.

    `node`: id of the node in Ray. `secret`: hexadecimal.
    """

    replica: str
    node: str
    host: str
    port: int
    secret: str

    def to_metadata(self) -> dict[str, Any]:
        """Return the value for Serve, which carries plain dicts."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> "Address | None":
        """Return the address; None for the metadata of another kind of replica."""
        try:
            return msgspec.convert(metadata, cls)
        except msgspec.ValidationError:
            return None


class Handshake(Struct, frozen=True, array_like=True):
    """`version`, `path`: of the model's version, which the replica loads where needed. `client`: for logs.

    `model`: its name, where models share the replica. `follows`: the client asks for no version there, but for the
    ReplicaReport.
    """

    protocol: int
    secret: str
    client: str
    version: str
    path: str
    model: str = ""
    follows: bool = False


def encode_handshake(handshake: Handshake) -> bytes:
    """Return the bytes of a handshake, with their length before them."""
    content = msgspec.msgpack.encode(handshake)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def take_handshake(received: bytearray, secret: str) -> Handshake | None:
    """Remove the handshake from the received bytes and return it; None while it is not whole.

    Raises ProtocolError for another protocol or a wrong secret.
    """
    if len(received) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "big")
    if end > MAX_HANDSHAKE_BYTES:
        raise ProtocolError("handshake: expected at most 64 KiB, got more")
    if len(received) < end:
        return None
    try:
        handshake = msgspec.msgpack.decode(received[_LENGTH_BYTES:end], type=Handshake)
    except msgspec.DecodeError:
        raise ProtocolError("handshake: expected a handshake, got other bytes") from None
    if handshake.protocol != PROTOCOL_VERSION:
        raise ProtocolError(f"handshake: expected protocol {PROTOCOL_VERSION}, got {handshake.protocol}")
    if not hmac.compare_digest(handshake.secret.encode(), secret.encode()):
        raise ProtocolError("handshake: expected the secret of the replica, got another one")
    del received[:end]
    return handshake


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
