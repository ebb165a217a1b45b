"""Hold idle connections to a server, and others that send a byte of a head now and then. A process of its own.

`python -m tools.bench.limits.crowd PORT IDLE TRICKLING` prints a line of JSON when all are connected, and one with the
counts after a line is read from the standard input.
"""

import itertools
import json
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

from app.server.http_server import connections_within_limit

_PERIOD_S = 1.0
"""Between two bytes of a connection that trickles."""
_STEPS = 50
"""Parts of the period: some of the connections send in each."""
_GROUP = 500
"""Connections that are opened together."""
_PER_ADDRESS = 10_000
"""Connections from one address of the loopback network, whose ports would not suffice for all."""
_HEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
_ENDLESS = _HEAD + b"x: " + b"y" * 1000


class Crowd:
    """The connections, by their file descriptors."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._poll = select.epoll()
        self._trickling: list[tuple[socket.socket, Iterator[int]]] = []
        self.idle: dict[int, socket.socket] = {}
        self.counts: Counter[str] = Counter()

    def connect(self) -> socket.socket:
        """Return another connection, from an address with a free port."""
        connection = socket.socket()
        connection.bind((f"127.0.0.{2 + next(self._numbers) // _PER_ADDRESS % 200}", 0))
        connection.connect(("127.0.0.1", self._port))
        return connection

    def add_idle(self, count: int) -> None:
        """Connect and send one request on each: the connections then wait for the next one."""
        opened = [self.connect() for _ in range(count)]
        for connection in opened:
            connection.sendall(_HEAD + b"\r\n")
        for connection in opened:
            answer = connection.recv(4096)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"connection {len(self.idle)} was answered {answer[:500]!r}")
            self.idle[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN | select.EPOLLRDHUP)

    def add_trickling(self) -> None:
        self._trickling.append((self.connect(), iter(_ENDLESS)))

    def trickle(self, step: int) -> None:
        """Send a byte on some of the connections; replace those that were closed."""
        for place in range(step % _STEPS, len(self._trickling), _STEPS):
            connection, rest = self._trickling[place]
            outcome = _send_byte(connection, next(rest))
            self.counts[outcome] += 1
            if outcome != "bytes":
                connection.close()
                self._trickling[place] = self.connect(), iter(_ENDLESS)

    def look(self) -> None:
        """Count the idle connections that the server closed."""
        for descriptor, _ in self._poll.poll(0):
            self._poll.unregister(descriptor)
            self.idle.pop(descriptor).close()
            self.counts["idle closed"] += 1


def _send_byte(connection: socket.socket, byte: int) -> str:
    """Return `bytes` if the byte was sent, else how the connection ended."""
    try:
        answer = connection.recv(4096, socket.MSG_DONTWAIT)
        return "answered 408" if answer.startswith(b"HTTP/1.1 408 ") else "closed"
    except BlockingIOError:
        pass
    except ConnectionError:
        return "closed"
    try:
        connection.send(bytes([byte]))
    except ConnectionError:
        return "closed"
    return "bytes"


def _wait_for_line(end: threading.Event) -> None:
    sys.stdin.readline()
    end.set()


def main(port: int, idle: int, trickling: int) -> None:
    connections_within_limit(idle + trickling)
    crowd = Crowd(port)
    # In groups: a turn of both processes for each connection would take minutes on a busy machine.
    for added in range(0, idle, _GROUP):
        crowd.add_idle(min(_GROUP, idle - added))
    for _ in range(trickling):
        crowd.add_trickling()
    print(json.dumps({"idle": len(crowd.idle), "trickling": trickling}), flush=True)
    end = threading.Event()
    threading.Thread(target=_wait_for_line, args=(end,), daemon=True).start()
    started_s = time.monotonic()
    for step in itertools.count():
        if end.wait(max(0.0, started_s + step * _PERIOD_S / _STEPS - time.monotonic())):
            break
        crowd.trickle(step)
        crowd.look()
    print(json.dumps(crowd.counts), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
