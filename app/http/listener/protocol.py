"""uvicorn's HTTP/1.1 protocol with bounds on what a client sends; a head that a connection repeats is parsed once."""

import asyncio
import urllib.parse
from collections.abc import Coroutine
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from app.http.listener.clocks import HeldFlow
from app.http.listener.cycle import FAST_PATH, Cycle
from app.http.listener.parsing import MAX_HEAD_BYTES, MAX_PIPELINED, SLICE_BYTES, ParsingProtocol
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

_END_OF_HEAD = b"\r\n\r\n"


class BoundedHttpProtocol(ParsingProtocol):
    """One connection. Subclasses with `limits` are given to uvicorn.Config as its `http` class.

    All code that runs for every request is in this file and in cycle.py, and the rest in those of the base classes.
    """

    cycle: Cycle
    # The head of the last request, where all of it arrived at once, and the bytes of the whole request; else 0.
    _head = b""
    _request_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        # Bytes that the reader has not taken are counted, from `pause_writing` to `resume_writing`.
        transport.set_write_buffer_limits(UNCOUNTED_BYTES, 0)
        limits = self.limits
        if not limits.accept():
            self.refuse_connection()
            return
        self._since_s = self.loop.time()
        self._timer_due_s = self._since_s + limits.bounds.header_timeout_s
        self._timer = self.loop.call_at(self._timer_due_s, self.check_clock)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stall_timer is not None:
            self.forget_reader()
        if self._waiting_hold is not None:
            self._waiting_hold.release()
        self._timed = None
        self._unparsed = b""
        super().connection_lost(exc)
        cycle = self.cycle
        if cycle is not None and cycle.on_disconnect is not None and not cycle.response_complete:
            cycle.on_disconnect()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if size == self._request_bytes and data.startswith(self._head) and self._repeat(data):
            return
        self._request_bytes = 0
        previous = self.cycle
        if size > SLICE_BYTES or self._unparsed:
            self.feed_slices(data)
            if self.successor is not None:
                return
        else:
            is_between = not self._held_bytes and (previous is None or previous.scope is self.scope)
            self._held_bytes += size
            try:
                self.parser.feed_data(data)
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
                self.feed_behind(error, data)
                if self.successor is not None:
                    return
            cycle = self.cycle
            if cycle is not previous and is_between and not cycle.more_body:
                head = data[: size - cycle.received_bytes]
                # No part of another request, and no chunks.
                if head.find(_END_OF_HEAD) == len(head) - len(_END_OF_HEAD):
                    self._head, self._request_bytes = head, size
        if self._held_bytes > MAX_HEAD_BYTES:
            self.refuse_head()
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.scope is not self.scope:
            self.watch_parts()

    def _repeat(self, data: bytes) -> bool:
        """Start a request whose head is that of the one before, byte for byte: it is not parsed again.

        Most clients send one head for all requests of a connection. Parsing it takes a tenth of a small request.
        """
        before = self.cycle
        if before.repeat is None or not (before.response_complete and before.keep_alive) or self.transport.is_closing():
            return False
        cycle = self.cycle = Cycle(self, True)
        cycle.body += data[len(self._head) :]
        cycle.received_bytes = len(data) - len(self._head)
        cycle.more_body = False
        cycle.has_news = True
        cycle.repeat = before.repeat
        self._start(cycle, before.repeat(cycle))
        return True

    def on_headers_complete(self) -> None:
        """As uvicorn's, with a Cycle. uvicorn's concurrency limit is off: permits bound requests."""
        if self.parser.should_upgrade():
            # The parser ends the message here; `data_received` feeds this head again, without the upgrade.
            self._is_upgrade = True
            return
        if self._held_bytes > MAX_HEAD_BYTES:
            # The first part of the body may be among them.
            self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if self._head_bytes > MAX_HEAD_BYTES:
                # Raised in a callback of the parser, this ends the parsing; send_400_response closes the connection.
                raise ValueError("the head of the request is too long")
        self._held_bytes = 0
        parser, scope = self.parser, self.scope
        http_version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if http_version != "1.1":
            scope["http_version"] = http_version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        scope["path"] = self.root_path + path
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        previous = self.cycle
        cycle = self.cycle = Cycle(self, http_version != "1.0" and parser.should_keep_alive())
        scope["extensions"] = {FAST_PATH: cycle}  # type: ignore[dict-item]
        if previous is None or previous.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        # The parser reports trailers as it does headers; they end in this list.
        self.headers = []

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """As uvicorn's. The request need not look for its task."""
        self._start(cycle, cycle.run_asgi(app))

    def _start(self, cycle: Cycle, answering: Coroutine[Any, Any, None]) -> None:
        task = cycle.task = self.loop.create_task(answering)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        """As uvicorn's, with one timer for all pauses of a connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self.watch_reader()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._unparsed and len(self.pipeline) < MAX_PIPELINED:
            # The rest of the body of the request that was just started may be in it.
            self.feed_slices(b"")
            if not self.pipeline:
                self.flow.resume_reading()
        if self._waiting_hold is not None:
            self.count_waiting()
        cycle = self.cycle
        if cycle.body and cycle.response_complete:
            # It was not read; a connection that waits for its next request keeps no body.
            cycle.body = bytearray()
        if cycle.more_body or cycle.scope is not self.scope:
            self.watch_parts()
            return
        self._timed = None
        self._since_s = self.loop.time()
        due_s = self._since_s + self.timeout_keep_alive
        if self._timer is None or self._timer_due_s > due_s:
            self.start_timer(due_s)

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        cycle = self.cycle
        cycle.received_bytes += len(body)
        if cycle.response_complete:
            return
        if cycle.collected is not None:
            cycle.collect(body)
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.has_news = True
        if cycle.event is not None:
            cycle.event.set()

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            self._is_upgrade = False
            return
        self._held_bytes = 0
        cycle = self.cycle
        cycle.more_body = False
        if cycle.response_complete:
            return
        cycle.has_news = True
        if cycle.event is not None:
            cycle.event.set()


class _Flow(HeldFlow):
    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            super().resume_reading()
