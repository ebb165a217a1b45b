"""Open the sockets of the server: one that listens for each worker, where the kernel shares connections among them."""

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

BACKLOG = 2048

BALANCES = sys.platform == "linux"
"""Whether the kernel shares new connections among all sockets that listen on a port with SO_REUSEPORT."""


_FLAGS = {"server.port": "--port", "server.grpc_port": "--grpc-port, or 0 for no gRPC"}


class CannotListenError(Exception):
    """An address cannot be opened; the message has the reason."""


@dataclass(frozen=True, slots=True)
class HttpSockets:
    """The listening sockets by number of the worker. They stay open in the supervisor: a worker that replaces another
    one gets the same socket, with the connections that wait in its queue.
    """

    sockets: tuple[socket.socket, ...]
    """One for each worker; the same object for all where the kernel does not share connections among several."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        host, port = self.sockets[0].getsockname()[:2]
        return host, port

    def keep_only(self, number: int) -> socket.socket:
        """Return the socket of one worker, and close those of the others in this process."""
        kept = self.sockets[number]
        for each in self.sockets:
            if each is not kept:
                each.close()
        return kept

    def pause(self, number: int) -> None:
        """Stop the socket of a worker that is not replaced soon: the others get the new connections.

        Connections in its queue are closed. Does nothing where all workers have the same socket.
        """
        if BALANCES:
            with suppress(OSError):  # it is paused already
                self.sockets[number].shutdown(socket.SHUT_RDWR)

    def resume(self, number: int) -> None:
        """Let the socket of a worker listen again after `pause`."""
        self.sockets[number].listen(BACKLOG)

    def close(self) -> None:
        """Close all sockets of this process."""
        for each in self.sockets:
            each.close()


def listen(host: str, port: int, setting: str = "server.port") -> socket.socket:
    """Return a listening socket that has the port for itself. `setting`: named in errors. Raises CannotListenError."""
    return _listen(host, port, False, setting)


def listen_shared(host: str, port: int, setting: str = "server.port") -> socket.socket:
    """Return a listening socket that shares the port with others of this user. Raises CannotListenError."""
    return _listen(host, port, True, setting)


def listen_for_workers(host: str, port: int, count: int) -> HttpSockets:
    """Return the sockets of `count` workers. Raises CannotListenError, also if another process uses the port."""
    first = listen(host, port)
    if not BALANCES:
        return HttpSockets((first,) * count)
    # SO_REUSEPORT alone would share the port with another server of the same user.
    port = first.getsockname()[1]
    first.close()
    sockets: list[socket.socket] = []
    try:
        sockets.extend(listen_shared(host, port) for _ in range(count))
    except CannotListenError:
        for each in sockets:
            each.close()
        raise
    return HttpSockets(tuple(sockets))


def reserve_port(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port and does not listen, for servers of workers that share the port.

    Raises OSError if another process uses the port.
    """
    address = _address(host, port)
    with _bound(*address, shares_port=False) as probe:
        # To bind is not enough: with SO_REUSEADDR it succeeds beside a socket that is bound and does not listen.
        probe.listen(1)
        port = probe.getsockname()[1]
    family, where = address
    return _bound(family, (where[0], port, *where[2:]), shares_port=True)


def _listen(host: str, port: int, shares_port: bool, setting: str) -> socket.socket:
    try:
        family, address = _address(host, port)
    except OSError as error:
        raise CannotListenError(
            f'server.host: expected an address of this machine, got "{host}" ({error.strerror})'
        ) from error
    try:
        listener = _bound(family, address, shares_port)
        try:
            # Listen now: a client that connects while models load gets a response, not a refused connection.
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CannotListenError(
            f"{setting}: cannot listen on {host}:{port} ({error.strerror}); choose another port with {_FLAGS[setting]}"
        ) from error
    return listener


def _address(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, address


def _bound(family: int, address: tuple[object, ...], shares_port: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
