"""Pass open descriptors to another process over a Unix datagram socket."""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from frameworks.core.channel.messages import ChannelLost

MAX_DESCRIPTORS = 8
"""Maximum number of descriptors of one group."""

_NUMBER = Struct(">Q")


class DescriptorSocket:
    """One end of a socket pair. A group of descriptors has a number, which messages of another channel refer to.

    Owned by the event loop.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over one end of `socket_pair`."""
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[int, list[int]]] = deque()
        self._arrived: dict[int, list[int]] = {}
        self._awaited: dict[int, asyncio.Future[list[int]]] = {}
        self._dropped: set[int] = set()
        self._is_closed = False
        self._loop.add_reader(sock, self._receive)

    def send(self, number: int, descriptors: Sequence[int]) -> None:
        """Send a group, which stays open here too. Nothing is sent after `close`, or where the peer has ended.

        Raises OSError if the system cannot pass or copy a descriptor.
        """
        if self._is_closed:
            return
        if not self._unsent:
            try:
                if self._try_send(number, descriptors):
                    return
            except OSError as error:
                # The peer has ended. No subclass of OSError has the errors of later attempts.
                if isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN:
                    return
                raise
        self._unsent.append((number, [os.dup(each) for each in descriptors]))
        if len(self._unsent) == 1:
            self._loop.add_writer(self._socket, self._send_more)

    async def take(self, number: int) -> list[int]:
        """Return the descriptors of a group, which the caller then owns. Raises ChannelLost after `close`."""
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            return arrived
        if self._is_closed:
            raise ChannelLost("descriptors: expected an open socket, got a closed one")
        awaited: asyncio.Future[list[int]] = self._loop.create_future()
        self._awaited[number] = awaited
        try:
            return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled() and awaited.exception() is None:
                _close_all(awaited.result())
            else:
                self.drop(number)
            raise
        finally:
            del self._awaited[number]

    def drop(self, number: int) -> None:
        """Close a group that is not needed any more, now or when it arrives."""
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            _close_all(arrived)
        elif not self._is_closed:
            self._dropped.add(number)

    def close(self) -> None:
        """Close the socket, and all groups that were not taken."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, group in [*self._unsent, *self._arrived.items()]:
            _close_all(group)
        self._unsent.clear()
        self._arrived.clear()
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(ChannelLost("descriptors: the socket was closed"))

    def _try_send(self, number: int, descriptors: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._socket, [_NUMBER.pack(number)], list(descriptors))
        except BlockingIOError:
            return False
        return True

    def _send_more(self) -> None:
        while self._unsent:
            number, group = self._unsent[0]
            with suppress(OSError):  # the peer has ended
                if not self._try_send(number, group):
                    return
            self._unsent.popleft()
            _close_all(group)
        self._loop.remove_writer(self._socket)

    def _receive(self) -> None:
        while not self._is_closed:
            try:
                data, group, _, _ = socket.recv_fds(self._socket, _NUMBER.size, MAX_DESCRIPTORS)
            except BlockingIOError:
                return
            except OSError:
                self._loop.remove_reader(self._socket)
                return
            if len(data) != _NUMBER.size:  # the peer has ended
                self._loop.remove_reader(self._socket)
                return
            (number,) = _NUMBER.unpack(data)
            awaited = self._awaited.get(number)
            if awaited is not None and not awaited.done():
                awaited.set_result(group)
            elif number in self._dropped:
                self._dropped.remove(number)
                _close_all(group)
            else:
                self._arrived[number] = group


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets for DescriptorSocket. Raises OSError if no descriptor is left."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


def _close_all(group: Sequence[int]) -> None:
    for each in group:
        os.close(each)
