"""HTTP by hand, for every door: bodies within their bound, answers with their headers, callers that leave."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.http.protocol import FAST_PATH
from app.observability.metrics import FastPath, RequestRecord, request_id, server_timing
from app.protocols.codec import ErrorWriter, Header
from app.protocols.errors import ClientGone, EmptyBody, TooLarge, extra_headers, to_http

log = structlog.get_logger(__name__)

# A request that is answered sooner is not worth a task that watches for its caller's going away.
_WATCH_AFTER_S = 0.05
_CLOSES = (b"connection", b"close")
_EMPTY = "the body is empty; send a JSON object"


def begin(scope: Scope) -> RequestRecord:
    """The record of a request that has just come in."""
    record = RequestRecord(request_id(scope["headers"]), scope["method"], scope["path"], time.perf_counter())
    extensions = scope.get("extensions")
    if extensions is not None:
        record.fast_path = extensions.get(FAST_PATH)
    return record


def body_at_hand(record: RequestRecord, max_body_bytes: int, lead_bytes: int = 0) -> bytes | None:
    """The whole body behind so many bytes, where the connection has it already. Raises TooLarge, EmptyBody."""
    body = record.fast_path.take_body() if record.fast_path is not None else None
    if body is None:
        return None
    if len(body) > max_body_bytes:
        raise TooLarge(max_body_bytes)
    if not body:
        raise EmptyBody(_EMPTY)
    return bytes(lead_bytes) + body if lead_bytes else body


async def read_body(
    scope: Scope,
    receive: Receive,
    max_body_bytes: int,
    glance: Callable[[bytes], None] | None = None,
    fast_path: FastPath | None = None,
    lead_bytes: int = 0,
) -> bytes:
    """The whole body behind so many bytes. Raises TooLarge (before reading, where content-length says so), ClientGone,
    EmptyBody.

    `glance` is given the beginning of a body that comes in pieces, before the rest is read; it may raise a refusal.
    """
    _check_length(scope["headers"], max_body_bytes)
    chunks: list[bytes] = []
    gathered: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size + sum(map(len, gathered)) > max_body_bytes:
            raise TooLarge(max_body_bytes)
        chunks.append(chunk)
        if not message.get("more_body"):
            break
        if len(chunks) == 1:
            if glance is not None:
                glance(chunk)
            if fast_path is not None:
                gathered = fast_path.gather(max_body_bytes - size)
    if not size and not gathered:
        raise EmptyBody(_EMPTY)
    if len(chunks) == 1 and not lead_bytes:
        return chunks[0]
    return b"".join([bytes(lead_bytes), *chunks, *gathered])


def _check_length(headers: list[Header], max_body_bytes: int) -> None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > max_body_bytes:
            raise TooLarge(max_body_bytes)


async def send_body(
    send: Send,
    record: RequestRecord,
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    headers: list[Header] | None = None,
) -> None:
    """Sends a whole answer with the headers that every answer carries."""
    record.status = status
    timing = server_timing(record.timings)
    if record.fast_path is not None and (not headers or _CLOSES not in headers):
        lines = (
            f"content-type: {content_type.decode()}\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {record.request_id}\r\nserver-timing: {timing}\r\n"
        )
        for name, value in headers or ():
            lines += f"{name.decode()}: {value.decode()}\r\n"
        if record.fast_path.respond(status, lines.encode("ascii"), body):
            return
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", record.request_id.encode()),
                (b"server-timing", timing.encode()),
                *(headers or ()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def json_answer(content: object, status: int = 200) -> Response:
    """What FastAPI's handlers return: JSON written by orjson."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def map_error(error: BaseException, record: RequestRecord) -> tuple[int, str, str]:
    """Status, code and message for an error; one of ours (500) is logged with its traceback, which no answer has."""
    status, code, message = to_http(error)
    if status == 500:
        log.error("internal error", request_id=record.request_id, path=record.path, exc_info=error)
    record.code = code
    # A message quotes what came; what cannot be written as UTF-8 is replaced.
    return status, code, message.encode("utf-8", "replace").decode("utf-8")


def error_body(error: BaseException, record: RequestRecord, write: ErrorWriter) -> tuple[int, bytes]:
    """The status and body for an error, as `map_error`."""
    status, code, message = map_error(error, record)
    return status, write(status, code, message, record.request_id)


async def send_error(send: Send, record: RequestRecord, error: BaseException, write: ErrorWriter) -> None:
    """Sends the answer for an error, and lets go of a connection whose body was not read to its end."""
    status, body = error_body(error, record, write)
    headers = extra_headers(error)
    if isinstance(error, TooLarge):
        headers.append(_CLOSES)
    await send_body(send, record, status, body, headers=headers)


class Watched:
    """A request that is being answered, and what its caller did meanwhile."""

    __slots__ = ("gone", "receive", "since_s", "task", "watcher")

    def __init__(self, receive: Receive, since_s: float) -> None:
        self.receive = receive
        self.since_s = since_s
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.watcher: asyncio.Task[None] | None = None
        self.gone = False


class HttpCaller:
    """As Caller of app/inference/pipeline.py: whoever closes the connection has gone away."""

    __slots__ = ("_gone_watch", "_receive", "_since_s", "_watched")

    def __init__(self, gone_watch: "DisconnectWatcher", receive: Receive, since_s: float) -> None:
        """`since_s`: when the request began (time.perf_counter)."""
        self._gone_watch = gone_watch
        self._receive = receive
        self._since_s = since_s
        self._watched: Watched | None = None

    def watch(self) -> None:
        self._watched = self._gone_watch.begin(self._receive, self._since_s)

    async def unwatch(self) -> None:
        watched = self._watched
        assert watched is not None
        if watched.watcher is None:
            self._gone_watch.forget(watched)
        else:
            await self._gone_watch.end(watched)

    @property
    def is_gone(self) -> bool:
        return self._watched is not None and self._watched.gone


class DisconnectWatcher:
    """Cancels the work for callers that leave.

    A request that is answered sooner than _WATCH_AFTER_S is not worth a task that waits for its caller's going, nor a
    timer of its own: one timer looks after them all. Owned by the event loop.
    """

    def __init__(self) -> None:
        self._young: dict[Watched, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, receive: Receive, since_s: float) -> Watched:
        """Work began at `since_s` (time.perf_counter) for the caller behind `receive`, in the current task.

        `forget` or, where it has a watcher, `end` must follow.
        """
        watched = Watched(receive, since_s)
        self._young[watched] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._look)
        return watched

    def forget(self, watched: Watched) -> None:
        """The work has ended before anybody looked after its caller."""
        del self._young[watched]

    async def end(self, watched: Watched) -> None:
        """The work has ended, however. Raises ClientGone where it was cancelled because the caller is gone."""
        assert watched.watcher is not None
        watched.watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watched.watcher
        if watched.gone:
            watched.task.uncancel()
            raise ClientGone

    def _look(self) -> None:
        """Gives a watcher to every request that has been here for long."""
        loop = asyncio.get_running_loop()
        before_s = time.perf_counter() - _WATCH_AFTER_S
        old = [watched for watched in self._young if watched.since_s <= before_s]
        for watched in old:
            del self._young[watched]
            watched.watcher = loop.create_task(_watch(watched))
        self._timer = loop.call_later(_WATCH_AFTER_S, self._look) if self._young else None


async def _watch(watched: Watched) -> None:
    message: Any = await watched.receive()
    if message["type"] == "http.disconnect":
        watched.gone = True
        watched.task.cancel()
