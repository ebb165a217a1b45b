"""Answer the HTTP requests of a worker that are no inference: it forwards them to the supervisor.

The worker checks the host, the origin, the key and the digest, reads the body within its bounds, and logs the request.
The supervisor answers it with the application of the routes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.admin.facts import LIVE_BODIES
from app.auth.authenticator import CREDENTIAL_HEADERS
from app.auth.permissions import HttpAccess
from app.http.bodies import read_body
from app.http.deferred import Lifespan, run_lifespan
from app.http.disconnects import DisconnectWatcher, watched
from app.http.prefixes import prefix_of, set_prefix
from app.observability.metrics import RequestRecord
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, EmptyBody, TooLarge
from app.workers.messages import AdminAnswer, AdminCall
from app.workers.principal_serialization import principal_of, sender_of
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import Overloaded
from frameworks.models.replicas.control import ControlLink
from frameworks.scheduling.byte_limit import ByteLimit

MAX_CALLS = 1024
"""Forwarded requests that the supervisor works on at once, over all workers; those of gRPC have the same bound."""
# Pages of metrics and lists take milliseconds of the supervisor's loop. More at once would only delay its other work.
_READS_AT_ONCE = 4
_RETRY_AFTER_S = 1.0
_PROBES = frozenset({"/health/ready", "/v2/health/ready"})

Applied = Callable[[], Awaitable[object]]
"""Returns when all workers have applied every change until now."""


class SupervisorLost(Overloaded):
    """The connection to the supervisor ended before its answer."""

    def __init__(self) -> None:
        super().__init__(
            "the server: expected its main process to answer, got a lost connection to it; send the request again",
            _RETRY_AFTER_S,
        )


class Places:
    """Bound the calls that the supervisor works on at once. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    def __enter__(self) -> None:
        """Raise Overloaded if all places are taken."""
        if self.taken >= self._most:
            raise Overloaded(
                f"the server: expected at most {self._most} requests at once that are no inference, got one more; "
                "send it again later",
                _RETRY_AFTER_S,
            )
        self.taken += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.taken -= 1


class ForwardedAdmin:
    """The ASGI application of a worker in place of the routes that change or describe the server.

    Whether the process is alive is answered here. Owned by the event loop.
    """

    def __init__(
        self,
        link: ControlLink,
        byte_limit: ByteLimit,
        access: HttpAccess,
        lifespan: Lifespan,
    ) -> None:
        """`byte_limit`: counts the bodies. `access`: of all routes. `lifespan`: starts and stops the worker's parts."""
        self._link = link
        self._byte_limit = byte_limit
        self._lifespan = lifespan
        self._access = access
        self._watcher = DisconnectWatcher()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the endpoint has authenticated. Raises Overloaded, RequestTimeout, ClientGone."""
        if scope["type"] == "lifespan":
            await run_lifespan(self._lifespan, receive, send)
            return
        method, path, record = scope["method"], scope["path"], scope["record"]
        if method == "GET" and path in LIVE_BODIES:
            await _send_json(orjson.dumps(LIVE_BODIES[path]), send)
            return
        # Routes of the other methods read no body.
        body = await self._read_body(scope, receive) if method == "POST" else b""
        make = partial(_call_of, scope, record, body)
        if _is_order(self._access, method, path):
            # It is completed also if its client disconnects.
            answer = await self._ask(make)
        else:
            async with watched(self._watcher, receive):
                answer = await self._ask(make)
        record.code = answer.code
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if it is too large, which the route reports if it reads its body."""
        try:
            with self._byte_limit.hold() as hold:
                return await read_body(scope, receive, MAX_MANAGEMENT_BYTES, hold)
        except EmptyBody:
            return b""
        except TooLarge:
            return None

    async def _ask(self, make: Callable[[int], AdminCall]) -> AdminAnswer:
        try:
            answer = await self._link.ask(make)
        except ChannelLost:
            raise SupervisorLost from None
        assert isinstance(answer, AdminAnswer)
        return answer


async def _send_json(body: bytes, send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class AdminServer:
    """Answer the forwarded requests in the supervisor. Its end cancels the orders in progress.

    Owned by the event loop.
    """

    def __init__(self, app: ASGIApp, access: HttpAccess, applied: Applied) -> None:
        """`app`: that of `build_admin`. `access`: of all routes."""
        self._app = app
        self._applied = applied
        self._access = access
        self._places = Places(MAX_CALLS)
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._orders: set[asyncio.Task[AdminAnswer]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for order in self._orders:
            order.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)

    def serve(self, link: ControlLink) -> None:
        """Answer the requests of a worker. Called before its link is open."""
        link.answer(AdminCall, partial(self._answer, link))

    async def _answer(self, link: ControlLink, call: AdminCall) -> AdminAnswer:
        """Return the response when all workers have applied what it says. Raises Overloaded."""
        if call.path in _PROBES:
            answer = await self._respond(call)
            await self._applied()
            return answer
        with self._places:
            if _is_order(self._access, call.method, call.path):
                answer = await self._carry_out(link, call)
            else:
                async with self._reads:
                    answer = await self._respond(call)
            await self._applied()
            return answer

    async def _carry_out(self, link: ControlLink, call: AdminCall) -> AdminAnswer:
        """Carry out an order. It goes on if its worker is lost, and ends if the worker withdraws it."""
        order = asyncio.get_running_loop().create_task(self._respond(call))
        self._orders.add(order)
        order.add_done_callback(self._orders.discard)
        try:
            return await asyncio.shield(order)
        except asyncio.CancelledError:
            if not link.lost.done():
                order.cancel()
            raise

    async def _respond(self, call: AdminCall) -> AdminAnswer:
        """Return the response of the application."""
        record = RequestRecord(call.request_id, call.method, call.path, call.started_s)
        record.principal = principal_of(call.sender)
        status, headers, parts = 0, [], []

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(_scope_of(call, record), _receive_of(call), send)
        except Exception:
            # The application raises an error of ours again, after it was logged and answered.
            if not status:
                raise
        return AdminAnswer(call.id, status, headers, b"".join(parts), record.code)


def _is_order(access: HttpAccess, method: str, path: str) -> bool:
    """Whether a request may change the models, so that it has an entry in the audit log."""
    matched = access.find(path)
    return matched is not None and bool(matched.action_of(method))


def _call_of(scope: Scope, record: RequestRecord, body: bytes | None, number: int) -> AdminCall:
    return AdminCall(
        number,
        sender_of(record.principal),
        record.request_id,
        record.started_s,
        scope["method"],
        scope["path"],
        scope["raw_path"],
        prefix_of(scope),
        scope["query_string"],
        [pair for pair in scope["headers"] if pair[0] not in CREDENTIAL_HEADERS],
        scope["http_version"],
        scope["scheme"],
        scope.get("server"),
        body,
    )


def _scope_of(call: AdminCall, record: RequestRecord) -> Scope:
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": call.http_version,
        "method": call.method,
        "scheme": call.scheme,
        "path": call.path,
        "raw_path": call.raw_path,
        "query_string": call.query_string,
        "root_path": "",
        "headers": call.headers,
        "server": call.server,
        "record": record,
    }
    set_prefix(scope, call.prefix)
    return scope


def _receive_of(call: AdminCall) -> Receive:
    body = bytes(MAX_MANAGEMENT_BYTES + 1) if call.body is None else call.body
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            # The worker cancels the request if its client disconnects.
            await asyncio.get_running_loop().create_future()
        return messages.pop()

    return receive
