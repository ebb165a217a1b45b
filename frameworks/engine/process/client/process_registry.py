"""Register running engine processes, so that the server kills all of them at its end, also after an error."""

from typing import Protocol


class Killable(Protocol):
    """A process that can be ended at once."""

    @property
    def pid(self) -> int: ...

    def kill(self, reason: str) -> None:
        """End the process; harmless if it has ended."""
        ...


_live: set[Killable] = set()


def add(process: Killable) -> None:
    """Record a process that has started."""
    _live.add(process)


def remove(process: Killable) -> None:
    """Forget a process that has ended and was reaped."""
    _live.discard(process)


def count() -> int:
    """Return the number of processes that have not been reaped."""
    return len(_live)


def process_ids() -> tuple[int, ...]:
    """Return the ids of the processes. Any thread may call it."""
    return tuple(each.pid for each in tuple(_live))


def kill_all(reason: str) -> None:
    """End all engine processes at once, without a wait for their end. A signal handler may call it."""
    for process in tuple(_live):
        process.kill(reason)
