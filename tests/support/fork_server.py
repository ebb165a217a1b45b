"""`python -m tests.support.fork_server SOCKET MODULE … --with-torch MODULE …`: start servers as forks with the modules.

A server spends most of its start with imports, and tests start many servers. A fork has the modules already, and is a
process of its own in all other respects. `tests.e2e.forks` sends the requests. The modules behind `--with-torch` are
imported by a fork of this process, when a server first needs them.

SOCKET is the number of an inherited socket that listens. Each message of its clients is a JSON object with `arguments`
(of `serve`), `environ`, `cwd`, `needs_torch` and `is_gated`, and two descriptors: standard error of the server, and a
socket that receives the server's process ID, then its exit status, a line each.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from frameworks.sources import offline
from tests.support.forced_proposals import force_proposals_if_asked

MAX_MESSAGE_BYTES = 1024 * 1024


_WITH_TORCH = "--with-torch"

Message = tuple[dict[str, Any], list[int]]
"""A request and its descriptors."""


def main() -> int:
    """Return in each fork the exit status of its server, and in the first process 0 when the last client has ended."""
    split = sys.argv.index(_WITH_TORCH)
    listener = socket.socket(fileno=int(sys.argv[1]))
    _import(sys.argv[2:split])
    with_torch: list[socket.socket] = []
    # The process that started this one connects to it.
    clients = [listener.accept()[0]]
    while clients:
        for ready in select.select([listener, *clients], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
                continue
            if (message := _receive(ready)) is None:
                clients.remove(ready)
                continue
            if message[0]["needs_torch"]:
                if not with_torch:
                    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    with_torch = [ours]
                    if _is_fork([listener, *clients, ours]):
                        _close(message)  # the fork gets them again
                        return _serve_with_torch(theirs, sys.argv[split + 1 :])
                    theirs.close()
                socket.send_fds(with_torch[0], [json.dumps(message[0]).encode()], message[1])
            elif _is_fork([listener, *clients, *with_torch]):
                return _start_and_wait(*message)
            _close(message)
    return 0


def _serve_with_torch(requests: socket.socket, modules: Sequence[str]) -> int:
    """Import the modules, then start servers until the fork server has ended."""
    _import(modules)
    while message := _receive(requests):
        if _is_fork([requests]):
            return _start_and_wait(*message)
        _close(message)
    return 0


def _receive(requests: socket.socket) -> Message | None:
    """Return the next message; None, with the socket closed, when the other side has closed it."""
    message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 2)
    if message:
        return json.loads(message), descriptors
    requests.close()
    return None


def _close(message: Message) -> None:
    for descriptor in message[1]:
        os.close(descriptor)


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    # Not ignored: the kernel would not add the CPU time of the servers to that of this process.
    signal.signal(signal.SIGCHLD, _reap)


def _is_fork(others: Sequence[socket.socket]) -> bool:
    """Fork; return whether this is the fork, where the sockets `others` are closed."""
    if os.fork():
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in others:
        each.close()
    return True


def _reap(_signal: int, _frame: object) -> None:
    """Reap the processes that waited for servers which have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start_and_wait(request: dict[str, Any], descriptors: Sequence[int]) -> int:
    """Fork the server and report its process ID and its end. The fork returns from here as the server."""
    stderr, status = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(status)
        return _prepared(request, stderr)()
    os.close(stderr)
    with socket.socket(fileno=status) as reports:
        reports.sendall(b"%d\n" % pid)
        _, wait_status = os.waitpid(pid, 0)
        reports.sendall(b"%d\n" % os.waitstatus_to_exitcode(wait_status))
    os._exit(0)


def _prepared(request: dict[str, Any], stderr: int) -> Callable[[], int]:
    """Make this process what `python -m app serve …` starts as; return its main function."""
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, null), (2, stderr)):
        os.dup2(source, target)
    os.close(null)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(request["environ"])
    # It was read at the import, in the environment of the tests.
    offline.IS_HUB_OFFLINE = offline.is_set_offline()
    os.chdir(request["cwd"])
    sys.argv = ["roundhouse", "serve", *request["arguments"]]
    if request["is_gated"]:
        from tests.support.gated_server import gate_runs

        gate_runs()
    force_proposals_if_asked()
    from app.cli.commands import main as serve
    from tests.support.held_loop import main as serve_measured

    return partial(serve_measured, serve)


if __name__ == "__main__":
    sys.exit(main())
