"""An engine process without an engine, for tests of `launch`. ENGINE_CHILD in the environment says what it does.

It sends one byte on the control socket when it is prepared.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import structlog

from frameworks.engine.process.host.startup import prepare


def wait_for_end(control: socket.socket) -> None:
    """End when the server closes the socket, as an engine does."""
    control.recv(1)


def ignore_end(_: socket.socket) -> None:
    """Never end."""
    while True:
        signal.pause()


def crash(_: socket.socket) -> None:
    """Read memory at address 0."""
    ctypes.string_at(0)


def fail(_: socket.socket) -> None:
    """End with the last lines of native output in no line."""
    os.write(2, b"first\nlast words")
    sys.exit(3)


def flood(_: socket.socket) -> None:
    """Print without an end."""
    while True:
        os.write(1, b"again\n" * 1000)


def log_lines(_: socket.socket) -> None:
    """Log with both loggers, and print other lines."""
    log = structlog.get_logger("engine")
    log.debug("too fine")
    log.warning("batch split", rows=3, engine="forged")
    logging.getLogger("library").error("failed at %s", "step 2")
    print("not a log line")
    try:
        raise KeyError("x" * 30_000)
    except KeyError:
        log.exception("run failed")


def fill_memory(_: socket.socket) -> None:
    """Allocate more than the limit."""
    kept = [bytearray(os.urandom(1)) * (64 * 1024 * 1024) for _ in range(64)]
    print(len(kept))


ACTS: dict[str, Callable[[socket.socket], None]] = {
    "wait_for_end": wait_for_end,
    "ignore_end": ignore_end,
    "crash": crash,
    "abort": lambda _: os.abort(),
    "kill_itself": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "fail": fail,
    "flood": flood,
    "log_lines": log_lines,
    "fill_memory": fill_memory,
}


def main() -> None:
    """Prepare, say so, act."""
    act = os.environ["ENGINE_CHILD"]
    if act == "leave":
        sys.exit(0)
    if act == "wait_unprepared":
        ignore_end(socket.socket())
    if act == "early_signals":
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    arguments = prepare(sys.argv[1:])
    control = socket.socket(fileno=arguments.fds[0])
    control.send(b"r")
    ACTS.get(act, wait_for_end)(control)


if __name__ == "__main__":
    main()
