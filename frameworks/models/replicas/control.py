"""Connect the supervisor and one worker: messages, requests with a reply, and descriptors."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

from frameworks.core.channel.channel import Channel
from frameworks.core.channel.descriptors import DescriptorSocket
from frameworks.core.channel.messages import ChannelLost, ChannelMessage, ProtocolError
from frameworks.core.errors import RoundhouseError
from frameworks.engine.process.wire.serialization import error_from_plain, error_to_plain
from frameworks.models.replicas.messages import ControlRequest, Failure, Reply, Withdraw

log = structlog.get_logger(__name__)

Sent = TypeVar("Sent", bound=ChannelMessage)
Asked = TypeVar("Asked", bound=ControlRequest)


class ControlLink:
    """One end. Owned by the event loop. Each part registers handlers for its messages before `open`."""

    def __init__(self, number: int, received: object) -> None:
        """`number`: of the worker, from 0. `received`: the union of the messages of the peer."""
        self.number = number
        self.pid = 0
        """Of the peer; 0 where it is not known."""
        self._channel: Channel[ChannelMessage] = Channel(received, self._received, self._channel_lost)
        self._handlers: dict[type[ChannelMessage], Callable[[Any], None]] = {Withdraw: self._withdraw}
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.descriptors: DescriptorSocket
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason when the peer has closed the connection."""

    async def open(self, control: socket.socket, descriptors: socket.socket) -> None:
        """Use the two sockets, which the link then owns."""
        self.descriptors = DescriptorSocket(descriptors)
        await self._channel.open(control)

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    @property
    def is_full(self) -> bool:
        """Whether the peer reads so slowly that large messages should not be sent."""
        return self._channel.is_full

    def handle(self, kind: type[Sent], handler: Callable[[Sent], None]) -> None:
        """Call `handler` for each message of this kind, in order. It must not block."""
        self._handlers[kind] = handler

    def answer(
        self,
        kind: type[Asked],
        handler: Callable[[Asked], Awaitable[Reply]],
        complete: Callable[[Asked], Asked] | None = None,
    ) -> None:
        """Answer each request of this kind with the result of `handler`, which runs in a task.

        `complete`: called when the request is received, even if it is withdrawn at once; returns that for `handler`.
        Its RoundhouseErrors, and errors of any other kind, are sent as Failure. It is cancelled if the peer withdraws
        the request, or is lost.
        """
        if complete is None:
            self._handlers[kind] = partial(self._begin_answer, handler)
        else:
            self._handlers[kind] = lambda request: self._begin_answer(handler, complete(request))

    def send(self, message: ChannelMessage) -> None:
        """Send a message at the end of this round of the loop. Does nothing where the peer is lost.

        Raises MessageTooLarge, InvalidInput and TypeError as Channel.send.
        """
        try:  # noqa: SIM105 - suppress takes three calls
            self._channel.send(message)
        except ChannelLost:
            pass

    async def ask(self, make: Callable[[int], ControlRequest]) -> Reply:
        """Send the request `make(id)`, and return its reply. If cancelled, the peer ends its work on it.

        Raises ChannelLost where the peer is lost, and the error of a Failure.
        """
        number = next(self._ids)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(make(number))
            answered: Reply = await reply
        except asyncio.CancelledError:
            self.send(Withdraw(number))
            raise
        finally:
            del self._replies[number]
        if isinstance(answered, Failure):
            raise error_from_plain(answered.error)
        return answered

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in a task that is cancelled when the link ends. Its errors are logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def close(self) -> None:
        """Send all messages, then close the connection. `lost` is done."""
        self._channel.close()
        self._channel_lost("the link was closed")

    def _received(self, messages: list[ChannelMessage]) -> None:
        for message in messages:
            if isinstance(message, Reply):
                reply = self._replies.get(message.id)
                if reply is not None and not reply.done():
                    reply.set_result(message)
                continue
            handler = self._handlers.get(type(message))
            if handler is None:
                raise ProtocolError(f"expected a message with a handler, got {type(message).__name__}")
            try:
                handler(message)
            except ProtocolError:
                raise
            except Exception:
                log.exception("control message failed", kind=type(message).__name__)

    def _begin_answer(self, handler: Callable[[Any], Awaitable[Reply]], request: ControlRequest) -> None:
        task = self.start(self._answer(handler, request))
        self._answering[request.id] = task
        task.add_done_callback(lambda _: self._answering.pop(request.id, None))

    async def _answer(self, handler: Callable[[Any], Awaitable[Reply]], request: ControlRequest) -> None:
        try:
            reply = await handler(request)
        except Exception as error:
            if not isinstance(error, RoundhouseError):
                log.exception("control request failed", kind=type(request).__name__)
            reply = Failure(request.id, error_to_plain(error))
        try:
            self.send(reply)
        except Exception as error:  # the peer must not wait for ever
            log.exception("control reply cannot be sent", kind=type(reply).__name__)
            self.send(Failure(request.id, error_to_plain(error)))

    def _withdraw(self, message: Withdraw) -> None:
        task = self._answering.get(message.id)
        if task is not None:
            task.cancel()

    def _end_task(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("control task failed", exc_info=task.exception())

    def _channel_lost(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self.descriptors.close()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ChannelLost(f"control: {reason}"))
        for task in [*self._tasks]:
            task.cancel()


class Workers:
    """The workers of a supervisor that are connected. Owned by the event loop."""

    def __init__(self) -> None:
        self.links: dict[int, ControlLink] = {}
        """By number."""
        self._on_connect: list[Callable[[ControlLink], None]] = []
        self._on_joined: list[Callable[[ControlLink], None]] = []
        self._on_left: list[Callable[[ControlLink], None]] = []

    def on_connect(self, callback: Callable[[ControlLink], None]) -> None:
        """Call `callback(link)` before each new link is opened: register its handlers there."""
        self._on_connect.append(callback)

    def on_joined(self, callback: Callable[[ControlLink], None]) -> None:
        """Call `callback(link)` when a link is open, before any message of the worker: send it the current state."""
        self._on_joined.append(callback)

    def on_left(self, callback: Callable[[ControlLink], None]) -> None:
        """Call `callback(link)` when a worker is lost: release all that it held."""
        self._on_left.append(callback)

    def process_ids(self) -> tuple[int, ...]:
        """Return the process ids of the connected workers. Any thread may call it."""
        return tuple(link.pid for link in tuple(self.links.values()) if link.pid)

    async def connect(self, link: ControlLink, control: socket.socket, descriptors: socket.socket) -> None:
        """Open the link of a new worker."""
        for callback in self._on_connect:
            callback(link)
        await link.open(control, descriptors)
        self.links[link.number] = link
        for callback in self._on_joined:
            callback(link)
        link.lost.add_done_callback(lambda _: self._leave(link))

    def _leave(self, link: ControlLink) -> None:
        if self.links.get(link.number) is link:
            del self.links[link.number]
        for callback in self._on_left:
            try:
                callback(link)
            except Exception:  # the other parts must release what the worker held
                log.exception("worker is not released", worker=link.number)
