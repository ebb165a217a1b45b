"""`python -m tests.support.fork_server SOCKET MODULE …`: import the modules once, then start servers as forks.

A server spends most of its start with imports, and tests start many servers. A fork has the modules already, and is a
process of its own in all other respects. `tests.e2e.forks` sends the requests.

SOCKET is the number of an inherited socket. Each message on it is a JSON object with `arguments` (of `serve`),
`environ`, `cwd` and `is_gated`, and two descriptors: standard error of the server, and a socket that receives the
server's process ID, then its exit status, a line each.
"""

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from frameworks.sources import offline
from tests.support.forced_proposals import force_proposals_if_asked

MAX_MESSAGE_BYTES = 1024 * 1024


def main() -> int:
    """Return in each fork the exit status of its server, and in the first process 0 when the socket is closed."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # Not ignored: the kernel would not add the CPU time of the servers to that of this process.
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 2)
        if not message:
            return 0
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _start_and_wait(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(_signal: int, _frame: object) -> None:
    """Reap the processes that waited for servers which have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start_and_wait(request: dict[str, Any], stderr: int, status: int) -> int:
    """Fork the server and report its process ID and its end. The fork returns from here as the server."""
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
