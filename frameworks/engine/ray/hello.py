"""The first bytes of a connection to a replica: who connects, and for which version of the model."""

import hmac
from typing import Any

import msgspec
from msgspec import Struct

from frameworks.engine.process.messages import ProtocolError

PROTOCOL_VERSION = 2
MAX_HELLO_BYTES = 64 * 1024
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


class Hello(Struct, frozen=True, array_like=True):
    """`version`, `path`: of the model's version, which the replica loads where needed. `client`: for logs.

    `model`: its name, where models share the replica. `follows`: the client asks for no version there, but for the
    Residents.
    """

    protocol: int
    secret: str
    client: str
    version: str
    path: str
    model: str = ""
    follows: bool = False


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes of a hello, with their length before them."""
    content = msgspec.msgpack.encode(hello)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def take_hello(received: bytearray, secret: str) -> Hello | None:
    """Remove the hello from the received bytes and return it; None while it is not whole.

    Raises ProtocolError for another protocol or a wrong secret.
    """
    if len(received) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "big")
    if end > MAX_HELLO_BYTES:
        raise ProtocolError("hello: expected at most 64 KiB, got more")
    if len(received) < end:
        return None
    try:
        hello = msgspec.msgpack.decode(received[_LENGTH_BYTES:end], type=Hello)
    except msgspec.DecodeError:
        raise ProtocolError("hello: expected a hello, got other bytes") from None
    if hello.protocol != PROTOCOL_VERSION:
        raise ProtocolError(f"hello: expected protocol {PROTOCOL_VERSION}, got {hello.protocol}")
    if not hmac.compare_digest(hello.secret.encode(), secret.encode()):
        raise ProtocolError("hello: expected the secret of the replica, got another one")
    del received[:end]
    return hello
