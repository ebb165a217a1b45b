"""Run one request over a connection that is opened again when it was closed."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from app.load_test.connection import Address, Connection, Failure, Response
from app.load_test.events import BadStream, StreamedGeneration, generated_tokens
from app.load_test.inputs import Body
from app.load_test.tally import Outcome
from app.load_test.target import error_code

_MAX_ERROR_BYTES = 64 * 1024


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of the whole run."""

    opened: int = 0
    closed_by_server: int = 0
    failed: int = 0


class BackOff:
    """Delays new connections while the server refuses or drops them: 50 ms, doubled up to 2 s. Shared by all."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._until_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a connection may be opened."""
        return max(0.0, self._until_s - now_s)

    def fail(self, now_s: float) -> None:
        """Report a failure. Failures during a delay do not make it longer."""
        if now_s >= self._until_s:
            self._delay_s = min(2.0, max(0.05, self._delay_s * 2))
            self._until_s = now_s + self._delay_s

    def succeed(self) -> None:
        """Report a response."""
        self._delay_s = self._until_s = 0.0


class Exchange:
    """One place for a connection, and the requests sent over it."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        counts: ConnectionCounts,
        back_off: BackOff,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """`pause`: sleeps, and ends early when the run does."""
        self._address = address
        self._timeout_s = timeout_s
        self._counts = counts
        self._back_off = back_off
        self._pause = pause
        self._connection: Connection | None = None

    async def run(self, body: Body, request: bytes, planned_s: float, is_delayed: bool) -> Outcome:
        """Send one request. `is_delayed`: it is planned again for the time when the connection is open."""
        outcome = Outcome(planned_s, 0.0)
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._open_connection()
                if is_delayed:
                    outcome.planned_s = time.monotonic()
                await _ask(connection, body, request, outcome)
            self._back_off.succeed()
        except TimeoutError:
            outcome.code = "timeout"
        except Failure as failure:
            outcome.code = failure.code
            self._back_off.fail(time.monotonic())
        except OSError as error:
            outcome.code = "tls_failed" if isinstance(error, ssl.SSLError) else "connection_failed"
            self._counts.failed += 1
            self._back_off.fail(time.monotonic())
        outcome.done_s = time.monotonic()
        return outcome

    async def wait(self) -> None:
        """Wait as long as no connection may be opened."""
        if self._connection is not None and self._connection.is_open:
            return
        wait_s = self._back_off.wait_s(time.monotonic())
        if wait_s > 0:
            await self._pause(wait_s)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    async def _open_connection(self) -> Connection:
        if self._connection is not None:
            if self._connection.is_open:
                return self._connection
            self._counts.closed_by_server += self._connection.is_closed_by_server
            self._connection = None
        self._connection = await Connection.connect(self._address)
        self._counts.opened += 1
        return self._connection


async def _ask(connection: Connection, body: Body, request: bytes, outcome: Outcome) -> None:
    """Fill the outcome. Raises Failure."""
    if not body.is_streamed:
        response = await connection.send(request)
        _read_status(response, outcome)
        if body.is_generation and not outcome.code:
            outcome.tokens = generated_tokens(_decoded(response.body))
        return
    generation = StreamedGeneration()

    def read(chunk: bytes) -> None:
        try:
            generation.feed(chunk, time.monotonic())
        except BadStream:
            raise Failure("invalid_stream") from None

    response = await connection.send(request, read)
    _read_status(response, outcome)
    if outcome.code:
        return
    if generation.error is not None:
        outcome.code = error_code(generation.error) or "error_event"
    elif not generation.is_done:
        outcome.code = "incomplete_stream"
    outcome.first_token_s, outcome.last_token_s = generation.first_s, generation.last_s
    outcome.tokens = generation.pieces if generation.tokens is None else generation.tokens


def _read_status(response: Response, outcome: Outcome) -> None:
    outcome.status = response.status
    outcome.server_timing = response.headers.get("server-timing", "")
    if response.status != 200:
        outcome.code = error_code(_decoded(response.body[:_MAX_ERROR_BYTES])) or "error"


def _decoded(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
