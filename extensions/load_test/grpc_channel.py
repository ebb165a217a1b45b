"""Open a gRPC connection, and tell failures of the connection from errors of the server."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from extensions.load_test.connection import MAX_BODY_BYTES, Address

_OPTIONS = (
    # Channels to the same server share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.primary_user_agent", "roundhouse-bench"),
)
_OVER_LIMIT = "Received message larger than max"
# Details of UNAVAILABLE that the library writes itself.
_TRANSPORT_WORDS = (
    *("Socket closed", "Stream removed", "Connection reset", "Broken pipe", "GOAWAY", "recvmsg", "sendmsg"),
    *("failed to connect", "keepalive", "Endpoint", "transport"),
)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Limit of a call, and its metadata."""

    timeout_s: float
    metadata: tuple[tuple[str, str], ...]


class NotConnected(OSError):
    """No connection was made."""


def open_channel(address: Address) -> grpc.aio.Channel:
    """Return a channel with a connection of its own, which is not open yet."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    # A scheme, for hosts whose names are schemes of gRPC.
    target = f"dns:///{host}:{address.port}"
    pem = address.pem
    if pem is None:
        return grpc.aio.insecure_channel(target, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
    return grpc.aio.secure_channel(target, credentials, _OPTIONS)


def is_open(channel: grpc.aio.Channel) -> bool:
    """Report whether the channel has a connection."""
    return channel.get_state() is grpc.ChannelConnectivity.READY


async def connect(channel: grpc.aio.Channel) -> None:
    """Open the connection. Raises NotConnected after the first failure."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
            raise NotConnected
        await channel.wait_for_state_change(state)


def failure_of(error: grpc.aio.AioRpcError, until_s: float) -> tuple[int, str]:
    """Return number and name of the status that the server sent; 0 and a failure of this side otherwise.

    `until_s`: deadline of the call on the monotonic clock.
    """
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() >= until_s - 0.001:
        return 0, "timeout"
    if status is grpc.StatusCode.UNAVAILABLE and any(words in details for words in _TRANSPORT_WORDS):
        return 0, "connection_closed"
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_LIMIT in details:
        return 0, "response_too_large"
    return int(status.value[0]), status.name


async def ask(address: Address, path: str, content: bytes, call: CallOptions) -> bytes:
    """Return the response to one request, on a connection of its own. Raises AioRpcError."""
    channel = open_channel(address)
    try:
        method: Any = channel.unary_unary(path)
        response: bytes = await method(content, timeout=call.timeout_s, metadata=call.metadata)
        return response
    finally:
        await close(channel)


async def close(channel: grpc.aio.Channel) -> None:
    """Close the channel, also if the task is cancelled meanwhile."""
    await asyncio.shield(channel.close())
