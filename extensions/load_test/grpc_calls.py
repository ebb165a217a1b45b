"""Send the requests of a run over gRPC: ModelInfer, and ModelStreamInfer for generated text."""

import asyncio
import time
from typing import Any

import grpc.aio

from app.cli.failures import grpc_reason_of, printable, refused_key
from extensions.load_test.client import BackOff, ConnectionCounts, Pause
from extensions.load_test.connection import MAX_BODY_BYTES, Address, Failure
from extensions.load_test.grpc_channel import (
    CallOptions,
    NotConnected,
    ask,
    close,
    connect,
    failure_of,
    is_open,
    open_channel,
)
from extensions.load_test.inputs.bodies import Body
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
from extensions.load_test.target import Credentials, NoTarget, Target

Metadata = tuple[tuple[str, str], ...]

_OPTIONS = {
    grpc.StatusCode.NOT_FOUND: "--model",
    grpc.StatusCode.PERMISSION_DENIED: "--api-key",
}
"""The option that is wrong, by the status of a missing description."""


class CallWriter:
    """Makes the metadata that authenticates a call."""

    def __init__(self, address: Address, credentials: Credentials, is_signed: bool) -> None:
        """`is_signed`: the credentials differ from call to call."""
        self.address = address
        self._credentials = credentials
        self._fixed = None if is_signed else tuple(credentials("POST", INFER, b"").items())

    def metadata(self, path: str, content: bytes) -> Metadata:
        """Raises ValueError for a key that cannot be sent."""
        if self._fixed is not None:
            return self._fixed
        return tuple(self._credentials("POST", path, content).items())


async def find_grpc_target(writer: CallWriter, model: str | None, is_streamed: bool, timeout_s: float) -> Target:
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
    return Target(address, "grpc", model, path, description, "protobuf")


def _no_target(error: grpc.aio.AioRpcError, address: Address, timeout_s: float) -> NoTarget:
    details = printable(error.details() or "", 500)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoTarget(f"--url: expected a response from {address.authority} in {timeout_s:g} s, got none")
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        got = grpc_reason_of(error.details() or "")
        got = got if ";" in got else f"{got}; give host and port of gRPC, by default 8081"
        return NoTarget(f"--url: expected a gRPC server at {address.authority}, got {got}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return NoTarget(refused_key(details))
    option = _OPTIONS.get(error.code(), "--url")
    return NoTarget(f"{option}: expected a description from {address.authority}, got {error.code().name} {details}")


class GrpcClient:
    """Sends the requests of one run over gRPC."""

    def __init__(self, target: Target, writer: CallWriter, timeout_s: float) -> None:
        self.target = target
        self.writer = writer
        self.timeout_s = timeout_s
        self.counts = ConnectionCounts()
        self.back_off = BackOff()

    def exchange(self, pause: Pause) -> "GrpcExchange":
        """Return a place without a connection."""
        return GrpcExchange(self, pause)


class GrpcExchange:
    """One place for a connection, and the calls on it, one at a time."""

    def __init__(self, client: GrpcClient, pause: Pause) -> None:
        self._client = client
        self._pause = pause
        self._channel: grpc.aio.Channel | None = None
        self._is_broken = False

    async def run(self, body: Body, planned_s: float, is_delayed: bool) -> Outcome:
        """Send one request. `is_delayed`: it is planned again for the time when the connection is open."""
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
        except Failure as failure:
            outcome.code = failure.code
        except NotConnected:
            outcome.code = "connection_failed"
            client.counts.failed += 1
        outcome.done_s = time.monotonic()
        if outcome.code in {"connection_failed", "connection_closed"}:
            client.back_off.fail(outcome.done_s)
        elif outcome.code != "timeout":
            client.back_off.succeed()
        return outcome

    async def wait(self) -> None:
        """Wait as long as no connection may be opened."""
        if self._has_connection():
            return
        wait_s = self._client.back_off.wait_s(time.monotonic())
        if wait_s > 0:
            await self._pause(wait_s)

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await close(self._channel)

    def _has_connection(self) -> bool:
        return self._channel is not None and not self._is_broken and is_open(self._channel)

    async def _open_channel(self) -> grpc.aio.Channel:
        if self._channel is not None:
            if self._has_connection():
                return self._channel
            self._client.counts.closed_by_server += 1
            await close(self._channel)
            self._channel, self._is_broken = None, False
        channel = open_channel(self._client.target.address)
        try:
            await connect(channel)
        except BaseException:
            await close(channel)
            raise
        self._channel = channel
        self._client.counts.opened += 1
        return channel


async def _call(channel: grpc.aio.Channel, path: str, body: Body, call: CallOptions, outcome: Outcome) -> None:
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
                raise Failure("response_too_large")
            if error:
                outcome.code, outcome.message = "error_event", printable(error, 500)
            if has_text:
                outcome.last_token_s = time.monotonic()
                outcome.first_token_s = outcome.first_token_s or outcome.last_token_s
                pieces += 1
    finally:
        stream.cancel()
    if not responses:
        raise Failure("incomplete_stream")
    outcome.tokens = pieces


def _read(response: bytes) -> tuple[bool, str]:
    try:
        return read_piece(response)
    except BadMessage:
        raise Failure("invalid_stream") from None
