"""The command line of an engine process. The server writes it, the process reads it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A terminal sends them to all processes of the server. The server handles them, its engine processes ignore them."""
TITLE = "roundhouse-engine"
"""The first argument: it names the process in the output of `ps`."""


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The facts that an engine process needs before its first message. `ps` shows them to all users."""

    model: str
    parent_pid: int
    fds: tuple[int, ...]
    """Inherited file descriptors: the control socket, then those that the caller of `launch` gave."""
    niceness: int = 0
    """Added to the niceness of the server."""
    cpus: frozenset[int] | None = None
    max_process_memory_bytes: int | None = None
    log_level: str = "info"

    def to_words(self) -> list[str]:
        """Return the arguments of the command line."""
        words = [TITLE, self.model, "--fds", _joined(self.fds), "--parent", str(self.parent_pid)]
        words += ["--nice", str(self.niceness), "--log-level", self.log_level]
        if self.cpus is not None:
            words += ["--cpus", _joined(sorted(self.cpus))]
        if self.max_process_memory_bytes is not None:
            words += ["--max-memory", str(self.max_process_memory_bytes)]
        return words

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "StartArguments":
        """Read the arguments that `to_words` wrote. Raises KeyError and ValueError for others."""
        _, model, *pairs = words
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        cpus, memory = values.get("--cpus"), values.get("--max-memory")
        return cls(
            model,
            int(values["--parent"]),
            _numbers(values["--fds"]),
            int(values["--nice"]),
            None if cpus is None else frozenset(_numbers(cpus)),
            None if memory is None else int(memory),
            values["--log-level"],
        )


def _joined(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
