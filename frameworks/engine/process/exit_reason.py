"""Why an engine process ended."""

import signal
from dataclasses import dataclass
from typing import Literal

_MEANINGS = {
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "a mapped file was cut short, or shared memory is full",
    "SIGABRT": "a native library gave up",
    "SIGFPE": "invalid arithmetic",
    "SIGILL": "an instruction that this CPU does not have",
    "SIGKILL": "most often the system, because memory was exhausted",
}
# Printed by C++ (ends with SIGABRT), Python and OpenBLAS (with a status) when an allocation fails.
_OUT_OF_MEMORY = (
    *("std::bad_alloc", "MemoryError", "can't start new thread", "Cannot allocate memory"),
    "OpenBLAS error: Memory allocation still failed",
)


@dataclass(frozen=True, slots=True)
class ExitReason:
    """The end of a process, for messages, metrics and the decision about a restart."""

    kind: Literal["signal", "status", "killed"]
    """`killed`: the server ended it; `signal`: something else did; `status`: it ended by itself."""
    detail: str
    """Name of the signal (SIGSEGV), exit status (1), or the reason that `kill` was given."""
    native_output: str
    """The last 4 KiB that the process printed besides log lines, such as the stack of a crash."""

    @classmethod
    def of(cls, returncode: int, killed_for: str | None, native_output: str) -> "ExitReason":
        """Describe a `returncode` of subprocess. `killed_for`: the reason that `kill` was given."""
        if returncode >= 0:
            return cls("status", str(returncode), native_output)
        # A crash that was faster than `kill` is still a crash.
        if killed_for is not None and returncode == -signal.SIGKILL:
            return cls("killed", killed_for, native_output)
        return cls("signal", _name(-returncode), native_output)

    @property
    def label(self) -> str:
        """The value of a metric: `sigsegv`, `exit_status`, `out_of_memory`; `killed`, whose reason the server knows."""
        if self.is_out_of_memory:
            return "out_of_memory"
        labels = {"signal": self.detail.lower().replace(" ", "_"), "status": "exit_status", "killed": "killed"}
        return labels[self.kind]

    @property
    def is_out_of_memory(self) -> bool:
        """True if an allocation failed in the process."""
        return self.kind != "killed" and any(words in self.native_output for words in _OUT_OF_MEMORY)

    @property
    def message(self) -> str:
        """A sentence for people, without a full stop."""
        if self.kind == "killed":
            return f"the engine process was ended: {self.detail}"
        because = "memory was exhausted" if self.is_out_of_memory else _MEANINGS.get(self.detail)
        how = f"by {self.detail}" if self.kind == "signal" else f"with exit status {self.detail}"
        return f"the engine process ended {how}" + (f" ({because})" if because else "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
