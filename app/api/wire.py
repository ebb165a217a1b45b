"""HTTP by hand, for every door: bodies within their bound, answers with their headers, callers that leave."""

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.errors import ClientGone, EmptyBody, TooLarge, UnsupportedMediaType, extra_headers, to_http
from app.observe import RequestRecord, request_id, server_timing

log = structlog.get_logger(__name__)

Header = tuple[bytes, bytes]
# A request that is answered sooner is not worth a task that watches for its caller's going away.
_WATCH_AFTER_S = 0.05


def begin(scope: Scope) -> RequestRecord:
    """The record of a request that has just come in."""
    return RequestRecord(request_id(scope["headers"]), scope["method"], scope["path"], time.perf_counter())


def check_media_type(scope: Scope) -> None:
    """Raises UnsupportedMediaType for a body that says it is no JSON in UTF-8, or is compressed.

    A web page may post text/plain and forms to any server without asking it; so these are not read as JSON.
    """
    for name, value in scope["headers"]:
        if name == b"content-type":
            media_type, _, parameters = value.decode("latin-1").lower().partition(";")
            media_type = media_type.strip()
            if media_type != "application/json" and not media_type.endswith("+json"):
                raise UnsupportedMediaType(
                    f'content-type is "{media_type[:100]}"; send "content-type: application/json" '
                    "(curl: -H 'content-type: application/json')"
                )
            if "charset" in parameters and "utf-8" not in parameters and "utf8" not in parameters:
                raise UnsupportedMediaType(f'content-type has "{parameters.strip()[:100]}"; JSON here is UTF-8')
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise UnsupportedMediaType(
                f'content-encoding "{value.decode("latin-1")[:100]}" is not read; send the body as it is'
            )


async def read_body(scope: Scope, receive: Receive, max_body_bytes: int) -> bytes:
    """The whole body. Raises TooLarge (before reading, where content-length says so), ClientGone, EmptyBody."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > max_body_bytes:
            raise _too_large(max_body_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_body_bytes:
            raise _too_large(max_body_bytes)
        chunks.append(chunk)
        if not message.get("more_body"):
            break
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if not body:
        raise EmptyBody("the body is empty; send a JSON object")
    return body


async def send_json(
    send: Send, record: RequestRecord, status: int, body: bytes, headers: list[Header] | None = None
) -> None:
    """Sends a whole answer with the headers that every answer carries."""
    record.status = status
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", record.request_id.encode()),
                (b"server-timing", server_timing(record.timings)),
                *(headers or ()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def json_answer(content: object, status: int = 200) -> Response:
    """What FastAPI's handlers return: JSON written by orjson."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_body(error: BaseException, record: RequestRecord) -> tuple[int, bytes]:
    """The status and body for an error; one of ours (500) is logged with its traceback, which the answer never has."""
    status, code, message = to_http(error)
    if status == 500:
        log.error("internal error", request_id=record.request_id, path=record.path, exc_info=error)
    record.code = code
    return status, orjson.dumps({"error": {"code": code, "message": _clean(message), "request_id": record.request_id}})


async def send_error(send: Send, record: RequestRecord, error: BaseException) -> None:
    """Sends the answer for an error, and lets go of a connection whose body was not read to its end."""
    status, body = error_body(error, record)
    headers = extra_headers(error)
    if isinstance(error, TooLarge):
        headers.append((b"connection", b"close"))
    await send_json(send, record, status, body, headers)


class CancelIfGone:
    """`async with` around work whose caller may leave: the work is then cancelled and ClientGone raised."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_WATCH_AFTER_S, self._start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is None:
            return
        self._watcher.cancel()
        with suppress(asyncio.CancelledError):
            await self._watcher
        if self._gone:
            assert self._task is not None
            self._task.uncancel()
            raise ClientGone

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        message: Any = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            assert self._task is not None
            self._task.cancel()


def _too_large(max_body_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than server.max_body_bytes, {max_body_bytes} bytes; send less at a time or raise it"
    )


def _clean(message: str) -> str:
    """A message quotes what came; what cannot be written as UTF-8 is replaced."""
    return message.encode("utf-8", "replace").decode("utf-8")
