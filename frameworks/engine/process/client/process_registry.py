"""Register running engine processes, so that the server kills all of them at its end, also after an error."""

from collections.abc import Callable

_running: dict[int, Callable[[str], None]] = {}


def add(pid: int, kill: Callable[[str], None]) -> None:
    """Record a process that has started. `kill(reason)`: ends it at once; harmless if it has ended."""
    _running[pid] = kill


def remove(pid: int) -> None:
    """Forget a process that has ended and was reaped."""
    _running.pop(pid, None)


def count() -> int:
    """Return the number of processes that have not been reaped."""
    return len(_running)


def process_ids() -> tuple[int, ...]:
    """Return the ids of the processes. Any thread may call it."""
    return tuple(_running)


def kill_all(reason: str) -> None:
    """End all engine processes at once, without a wait for their end. A signal handler may call it."""
    for kill in tuple(_running.values()):
        kill(reason)
