"""`python -m tests.support.fork_parent`: a supervisor that forks two workers, for tests that read its output.

It prints a line for each event: `forked 0 PID`, `says 0 TEXT`, `ended 0 RETURNCODE`, `lost`. A line of its standard
input is an order: `tell 0 exit`, `fork 0`, `kill PID`, `close`.
"""

import asyncio
import os
import signal
import socket
from pathlib import Path

from app.workers.fork_server import ForkServer, start_fork_server

_ACTS = {"segv": signal.SIGSEGV, "term": signal.SIGTERM, "int": signal.SIGINT}
_prepared: list[str] = []


def run(number: int, control: socket.socket, descriptors: socket.socket) -> int:
    """Be a worker: say who it is, then obey."""
    threads = len(os.listdir("/proc/self/task"))
    control.sendall(f"{Path('/proc/self/comm').read_text().strip()}, {threads} thread, {_prepared}\n".encode())
    with control, descriptors:
        while act := control.recv(100).decode():
            if act == "exit":
                return 3
            if act == "raise":
                raise ValueError(act)
            os.kill(os.getpid(), _ACTS[act])
            control.sendall(b"still here\n")
    return 0


class Parent:
    """The supervisor."""

    def __init__(self, server: ForkServer) -> None:
        self.server = server
        self.controls: dict[int, socket.socket] = {}

    def fork(self, number: int) -> None:
        (control, theirs), (ours, other) = socket.socketpair(), socket.socketpair()
        with theirs, ours, other:
            self.server.fork(number, theirs, other)
        control.setblocking(False)
        self.controls[number] = control
        asyncio.get_running_loop().add_reader(control, self._read, number, control)

    def _read(self, number: int, control: socket.socket) -> None:
        text = control.recv(1000).decode()
        if not text:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        for line in text.splitlines():
            print(f"says {number} {line}", flush=True)

    def forked(self, number: int, pid: int) -> None:
        print(f"forked {number} {pid}", flush=True)

    def ended(self, number: int, pid: int, returncode: int) -> None:
        print(f"ended {number} {returncode}", flush=True)

    def fork_server_lost(self) -> None:
        print("lost", flush=True)

    def read_orders(self) -> None:
        # Not through sys.stdin: its buffer may hold further lines, and no event reports them.
        for line in os.read(0, 1000).decode().splitlines():
            self._obey(line.split())

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["tell", number, act]:
                self.controls[int(number)].send(act.encode())
            case ["fork", number]:
                self.fork(int(number))
            case ["kill", pid]:
                self.server.kill(int(pid))
            case ["close"]:
                self.server.unwatch()
                self.server.close()
                print("closed", flush=True)


async def main(server: ForkServer) -> None:
    """Run the supervisor until it is killed."""
    parent = Parent(server)
    server.watch(parent.forked, parent.ended, parent.fork_server_lost)
    print(f"server {server.pid}", flush=True)
    parent.fork(0)
    parent.fork(1)
    asyncio.get_running_loop().add_reader(0, parent.read_orders)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(start_fork_server(lambda: _prepared.append("prepared"), run)))
