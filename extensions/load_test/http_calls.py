"""Send the requests of a run over HTTP/1.1."""

import asyncio
import ssl
import time

import orjson

from app.cli.failures import printable
from extensions.load_test.client import Client, Pause, TargetCaller
from extensions.load_test.connection import Connection, RequestFailure, Response
from extensions.load_test.events import BadStream, StreamedGeneration, generated_tokens
from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.results.tally import Outcome
from extensions.load_test.target import LoadTarget, RequestWriter, error_code, error_message

_MAX_ERROR_BYTES = 64 * 1024


class HttpClient(Client):
    """Sends the requests of one run over HTTP/1.1."""

    def __init__(self, target: LoadTarget, writer: RequestWriter, timeout_s: float) -> None:
        super().__init__(target, timeout_s)
        self._writer = writer
        self._written: dict[RequestContent, bytes] = {}

    def caller(self, pause: Pause) -> "HttpCaller":
        return HttpCaller(self, pause)

    def write(self, body: RequestContent) -> bytes:
        """Return the bytes of a request, which are written once if they are always the same."""
        request = self._written.get(body)
        if request is None:
            request = self._writer.write("POST", self.target.path, body.content, body.headers)
            if not self._writer.is_signed:
                self._written[body] = request
        return request


class HttpCaller(TargetCaller):
    """A Caller over one connection of HTTP/1.1."""

    def __init__(self, client: HttpClient, pause: Pause) -> None:
        super().__init__(client, pause)
        self._client = client
        self._connection: Connection | None = None

    async def run(self, body: RequestContent, planned_s: float, is_delayed: bool) -> Outcome:
        outcome = Outcome(planned_s, 0.0)
        request = self._client.write(body)
        try:
            async with asyncio.timeout(self._client.timeout_s):
                connection = await self._open_connection()
                if is_delayed:
                    outcome.planned_s = time.monotonic()
                await _ask(connection, body, request, outcome)
            self._back_off.succeed()
        except TimeoutError:
            outcome.code = "timeout"
        except RequestFailure as failure:
            outcome.code = failure.code
            self._back_off.fail(time.monotonic())
        except OSError as error:
            outcome.code = "tls_failed" if isinstance(error, ssl.SSLError) else "connection_failed"
            outcome.message = printable(str(error), 500)
            self._counts.failed += 1
            self._back_off.fail(time.monotonic())
        outcome.done_s = time.monotonic()
        return outcome

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _open_connection(self) -> Connection:
        if self._connection is not None:
            if self._connection.is_open:
                return self._connection
            self._counts.closed_by_server += self._connection.is_closed_by_server
            self._connection = None
        self._connection = await Connection.connect(self._client.target.address)
        self._counts.opened += 1
        return self._connection


async def _ask(connection: Connection, body: RequestContent, request: bytes, outcome: Outcome) -> None:
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
            raise RequestFailure("invalid_stream") from None

    response = await connection.send(request, read)
    _read_status(response, outcome)
    if outcome.code:
        return
    if generation.error is not None:
        outcome.code = error_code(generation.error) or "error_event"
        outcome.message = error_message(generation.error)
    elif not generation.is_done:
        outcome.code = "incomplete_stream"
    outcome.first_token_s, outcome.last_token_s = generation.first_s, generation.last_s
    outcome.tokens = generation.pieces if generation.tokens is None else generation.tokens


def _read_status(response: Response, outcome: Outcome) -> None:
    outcome.status = response.status
    outcome.server_timing = response.headers.get("server-timing", "")
    if response.status != 200:
        error = _decoded(response.body[:_MAX_ERROR_BYTES])
        outcome.code = error_code(error) or "error"
        outcome.message = error_message(error)


def _decoded(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
