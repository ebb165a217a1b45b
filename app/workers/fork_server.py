"""Fork workers from a process that has no threads, and that has imported their modules once for all of them.

The supervisor has threads, so that it must not fork. The fork server is forked from it before they start.
"""

import asyncio
import errno
import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from struct import Struct
from typing import NoReturn

from frameworks.engine.process.host.startup import end_with_parent, set_name

# The kind of a record, the number of a worker, a process ID, and an exit status or an error number.
_RECORD = Struct(">BIIi")
_FORK, _KILL, _FORKED, _FAILED, _ENDED = range(5)
_READ_BYTES = 4096
# A terminal sends them to all its processes; the supervisor handles them.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RunWorker = Callable[[int, socket.socket, socket.socket], int]
"""Run the worker of this number with its control socket and its descriptor socket; return its exit status."""


class ForkServer:
    """The supervisor's side. Owned by the event loop from `watch` on."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._socket = connection
        self._unread = b""
        self._is_closed = False

    def watch(
        self, forked: Callable[[int, int], None], ended: Callable[[int, int, int], None], lost: Callable[[], None]
    ) -> None:
        """Report from now on, on the event loop.

        `forked(number, pid)`: a worker was started. `ended(number, pid, returncode)`: it has ended; `returncode` is as
        that of subprocess, negative for a signal. With `pid` 0 it could not be forked, and `returncode` is the error
        number. `lost`: the fork server has ended, and all workers with it.
        """
        self._forked, self._ended, self._lost = forked, ended, lost
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def fork(self, number: int, control: socket.socket, descriptors: socket.socket) -> None:
        """Fork a worker with these ends of its sockets, which the caller closes. Raises OSError if that is lost."""
        socket.send_fds(self._socket, [_RECORD.pack(_FORK, number, 0, 0)], [control.fileno(), descriptors.fileno()])

    def kill(self, pid: int) -> None:
        """End a worker at once. Harmless if it has ended: the fork server knows if the ID is still that of a worker."""
        if not self._is_closed:
            try:
                self._socket.send(_RECORD.pack(_KILL, 0, pid, 0))
            except OSError:  # the fork server has ended, and its workers with it
                return

    def unwatch(self) -> None:
        """Report nothing from now on."""
        asyncio.get_running_loop().remove_reader(self._socket)

    def close(self) -> None:
        """End the fork server, and all workers with it; return when it was reaped. Call it outside of the loop."""
        self._is_closed = True
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.unwatch()
            self._lost()
            return
        data = self._unread + data
        whole = len(data) - len(data) % _RECORD.size
        self._unread = data[whole:]
        for kind, number, pid, status in _RECORD.iter_unpack(data[:whole]):
            if kind == _FORKED:
                self._forked(number, pid)
            else:
                self._ended(number, pid, status)


def start_fork_server(prepare: Callable[[], None], run: RunWorker) -> ForkServer:
    """Fork the fork server from this process, which must have one thread.

    `prepare`: imports the modules of the workers, in the fork server. `run`: called in each worker. Raises OSError.
    """
    assert threading.active_count() == 1, "a fork has only the thread that forks"
    ours, theirs = socket.socketpair()
    supervisor = os.getpid()
    # The forks inherit this: no signal ends them before they ignore it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            ours.close()
            _exit_with(lambda: _serve(theirs, supervisor, prepare, run))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ForkServer(ours, pid)


def _exit_with(work: Callable[[], int]) -> NoReturn:
    """End this process with the result of `work`. Nothing of the process that it was forked from runs on."""
    status = 1
    try:
        status = work()
    except BaseException:  # noqa: BLE001 - the last handler of this process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(requests: socket.socket, supervisor: int, prepare: Callable[[], None], run: RunWorker) -> int:
    """Serve requests until the supervisor ends."""
    set_name("rh:fork-server")
    end_with_parent(supervisor)
    _ignore_stop_signals()
    prepare()
    gc.collect()
    # The collector would write to the pages of all objects, and the workers could not share them.
    gc.freeze()
    return _Forks(requests, run).serve()


class _Forks:
    """The workers of the fork server."""

    def __init__(self, requests: socket.socket, run: RunWorker) -> None:
        self._requests = requests
        self._run = run
        self._workers: dict[int, int] = {}
        self._woken, self._waker = socket.socketpair()
        for each in (self._woken, self._waker):
            each.setblocking(False)
        # Python's handler does nothing; the number of the signal is written to the socket.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> int:
        """Fork, reap and report until the supervisor closes its end."""
        while True:
            readable, _, _ = select.select([self._requests, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(_READ_BYTES)
                self._reap()
            if self._requests in readable and not self._handle_request():
                self._kill_all()
                return 0

    def _handle_request(self) -> bool:
        """Handle one request. Returns False at the end of the supervisor."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._requests, _RECORD.size, 2)
        except OSError:
            return False
        if len(data) != _RECORD.size:
            return False
        kind, number, pid, _ = _RECORD.unpack(data)
        if kind == _KILL:
            if pid in self._workers:
                os.kill(pid, signal.SIGKILL)
            return True
        control, group = (socket.socket(fileno=each) for each in descriptors)
        with control, group:
            self._fork(number, control, group)
        return True

    def _fork(self, number: int, control: socket.socket, group: socket.socket) -> None:
        fork_server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(_FAILED, number, 0, error.errno or errno.EAGAIN)
            return
        if pid == 0:
            _exit_with(lambda: self._become_worker(fork_server, number, control, group))
        self._workers[pid] = number
        self._report(_FORKED, number, pid, 0)

    def _become_worker(self, fork_server: int, number: int, control: socket.socket, group: socket.socket) -> int:
        set_name(f"rh:worker {number}")
        end_with_parent(fork_server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._requests, self._woken, self._waker):
            each.close()
        return self._run(number, control, group)

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._report(_ENDED, self._workers.pop(pid), pid, os.waitstatus_to_exitcode(status))

    def _report(self, kind: int, number: int, pid: int, status: int) -> None:
        try:
            self._requests.sendall(_RECORD.pack(kind, number, pid, status))
        except OSError:  # the supervisor has ended; the next read finds that
            return

    def _kill_all(self) -> None:
        """End the workers that are left, as Linux does by itself."""
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)


def _ignore_stop_signals() -> None:
    """Ignore the signals to the server: the supervisor ends the workers when requests are answered."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
