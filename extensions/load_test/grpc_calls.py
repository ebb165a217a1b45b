"""Send the requests of a run over gRPC: ModelInfer, and ModelStreamInfer for generated text."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from app.cli.failures import grpc_reason_of, printable, refused_key
from extensions.load_test.client import Client, Pause, TargetCaller
from extensions.load_test.connection import MAX_BODY_BYTES, RequestFailure, ServerAddress
from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.inputs.grpc_messages import (
    INFER,
    METADATA,
    STREAM_INFER,
    BadMessage,
    description_of,
    metadata_request,
    read_piece,
)
from extensions.load_test.inputs.open_inference import generates_text
from extensions.load_test.results.tally import Outcome
from extensions.load_test.target import Credentials, LoadTarget, NoTarget

_CHANNEL_OPTIONS = (
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


def open_channel(address: ServerAddress) -> grpc.aio.Channel:
    """Return a channel with a connection of its own, which is not open yet."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    # A scheme, for hosts whose names are schemes of gRPC.
    target = f"dns:///{host}:{address.port}"
    pem = address.pem
    if pem is None:
        return grpc.aio.insecure_channel(target, _CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
    return grpc.aio.secure_channel(target, credentials, _CHANNEL_OPTIONS)


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


async def ask(address: ServerAddress, path: str, content: bytes, call: CallOptions) -> bytes:
    """Return the response to one request, on a connection of its own. Raises AioRpcError."""
    channel = open_channel(address)
    try:
        method: Any = channel.unary_unary(path)
        response: bytes = await method(content, timeout=call.timeout_s, metadata=call.metadata)
        return response
    finally:
        await _close(channel)


async def _close(channel: grpc.aio.Channel) -> None:
    """Close the channel, also if the task is cancelled meanwhile."""
    await asyncio.shield(channel.close())


Metadata = tuple[tuple[str, str], ...]

_OPTIONS = {
    grpc.StatusCode.NOT_FOUND: "--model",
    grpc.StatusCode.PERMISSION_DENIED: "--api-key",
}
"""The option that is wrong, by the status of a missing description."""


class CallWriter:
    """Makes the metadata that authenticates a call."""

    def __init__(self, address: ServerAddress, credentials: Credentials, is_signed: bool) -> None:
        """`is_signed`: the credentials differ from call to call."""
        self.address = address
        self._credentials = credentials
        self._fixed = None if is_signed else tuple(credentials("POST", INFER, b"").items())

    def metadata(self, path: str, content: bytes) -> Metadata:
        """Raises ValueError for a key that cannot be sent."""
        if self._fixed is not None:
            return self._fixed
        return tuple(self._credentials("POST", path, content).items())


async def find_grpc_target(writer: CallWriter, model: str | None, is_streamed: bool, timeout_s: float) -> LoadTarget:
    """Ask for the description of the model. Raises NoTarget, ValueError for a key that cannot be sent."""
    if model is None:
        raise NoTarget("--model: expected the name of a model, got none; --protocol grpc needs it")
    address, content = writer.address, metadata_request(model)
    call = CallOptions(timeout_s, writer.metadata(METADATA, content))
    try:
        description = description_of(await ask(address, METADATA, content, call))
    except grpc.aio.AioRpcError as error:
        raise _no_target(error, address, timeout_s) from None
    except BadMessage:
        raise NoTarget(f"--url: expected ModelMetadata from {address.authority}, got another message") from None
    path = STREAM_INFER if is_streamed and generates_text(description) else INFER
    return LoadTarget(address, "grpc", model, path, description, "protobuf")


def _no_target(error: grpc.aio.AioRpcError, address: ServerAddress, timeout_s: float) -> NoTarget:
    details = printable(error.details() or "", 500)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoTarget(f"--url: expected a response from {address.authority} in {timeout_s:g} s, got none")
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        got = grpc_reason_of(error.details() or "")
        got = got if ";" in got else f"{got}; give host and port of gRPC, by default 8080"
        return NoTarget(f"--url: expected a gRPC server at {address.authority}, got {got}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return NoTarget(refused_key(details))
    option = _OPTIONS.get(error.code(), "--url")
    return NoTarget(f"{option}: expected a description from {address.authority}, got {error.code().name} {details}")


class GrpcClient(Client):
    """Sends the requests of one run over gRPC."""

    def __init__(self, target: LoadTarget, writer: CallWriter, timeout_s: float) -> None:
        super().__init__(target, timeout_s)
        self.writer = writer

    def caller(self, pause: Pause) -> "GrpcCaller":
        return GrpcCaller(self, pause)


class GrpcCaller(TargetCaller):
    """A Caller over one channel of gRPC."""

    def __init__(self, client: GrpcClient, pause: Pause) -> None:
        super().__init__(client, pause)
        self._client = client
        self._channel: grpc.aio.Channel | None = None
        self._is_broken = False

    async def run(self, body: RequestContent, planned_s: float, is_delayed: bool) -> Outcome:
        outcome = Outcome(planned_s, 0.0)
        client, until_s = self._client, time.monotonic() + self._client.timeout_s
        try:
            async with asyncio.timeout(client.timeout_s):
                channel = await self._open_channel()
            if is_delayed:
                outcome.planned_s = time.monotonic()
            call = CallOptions(
                max(0.001, until_s - time.monotonic()), client.writer.metadata(client.target.path, body.content)
            )
            try:
                await _call(channel, client.target.path, body, call, outcome)
            except grpc.aio.AioRpcError as error:
                outcome.status, outcome.code = failure_of(error, until_s)
                outcome.message = printable(error.details() or "", 500)
                # The channel may learn of it later than the call.
                self._is_broken = outcome.code == "connection_closed"
        except TimeoutError:
            outcome.code = "timeout"
        except RequestFailure as failure:
            outcome.code = failure.code
        except NotConnected:
            outcome.code = "connection_failed"
            self._counts.failed += 1
        outcome.done_s = time.monotonic()
        if outcome.code in {"connection_failed", "connection_closed"}:
            self._back_off.fail(outcome.done_s)
        elif outcome.code != "timeout":
            self._back_off.succeed()
        return outcome

    async def close(self) -> None:
        if self._channel is not None:
            await _close(self._channel)

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and not self._is_broken and is_open(self._channel)

    async def _open_channel(self) -> grpc.aio.Channel:
        if self._channel is not None:
            if self.is_connected:
                return self._channel
            self._counts.closed_by_server += 1
            await _close(self._channel)
            self._channel, self._is_broken = None, False
        channel = open_channel(self._client.target.address)
        try:
            await connect(channel)
        except BaseException:
            await _close(channel)
            raise
        self._channel = channel
        self._counts.opened += 1
        return channel


async def _call(
    channel: grpc.aio.Channel, path: str, body: RequestContent, call: CallOptions, outcome: Outcome
) -> None:
    """Fill the outcome. Raises AioRpcError, Failure."""
    if path != STREAM_INFER:
        method: Any = channel.unary_unary(path)
        await method(body.content, timeout=call.timeout_s, metadata=call.metadata)
        return
    open_stream: Any = channel.stream_stream(path)
    stream = open_stream(iter([body.content]), timeout=call.timeout_s, metadata=call.metadata)
    size = responses = pieces = 0
    try:
        async for response in stream:
            size += len(response)
            responses += 1
            has_text, error = _read(response)
            if size > MAX_BODY_BYTES:
                raise RequestFailure("response_too_large")
            if error:
                outcome.code, outcome.message = "error_event", printable(error, 500)
            if has_text:
                outcome.last_token_s = time.monotonic()
                outcome.first_token_s = outcome.first_token_s or outcome.last_token_s
                pieces += 1
    finally:
        stream.cancel()
    if not responses:
        raise RequestFailure("incomplete_stream")
    outcome.tokens = pieces


def _read(response: bytes) -> tuple[bool, str]:
    try:
        return read_piece(response)
    except BadMessage:
        raise RequestFailure("invalid_stream") from None
