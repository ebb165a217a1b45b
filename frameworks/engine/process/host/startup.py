"""The first steps of an engine process, before a framework is imported: its name, its limits, its end."""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

from frameworks.engine.process.wire.arguments import TERMINAL_SIGNALS, StartArguments
from memory.allocator import keep_freed_memory
from memory.garbage import shorten_collections

# From the kernel's prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SWITCH_INTERVAL_S = 0.001


def prepare(words: Sequence[str]) -> StartArguments:
    """Prepare this process, which `launch` has started with the arguments `words`; return them.

    Call it on the main thread before other threads start, and before torch or onnxruntime is imported: they size their
    thread pools by the CPUs of the process. Raises OSError if the CPUs are not those of this machine.
    """
    arguments = StartArguments.from_words(words)
    end_with_parent(arguments.parent_pid)
    _ignore_stop_signals()
    faulthandler.enable()
    set_name(f"rh:{arguments.model}")
    warnings = _set_limits(arguments)
    keep_freed_memory()
    shorten_collections()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _log(arguments.log_level, warnings)
    return arguments


def end_with_parent(parent_pid: int) -> None:
    """Let the kernel end this process with the server, also if SIGKILL ends the server.

    Without prctl the process ends when the control socket is closed.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The server ended before the call.
        os._exit(1)


def _ignore_stop_signals() -> None:
    """Ignore the signals to the server. It ends this process when the requests in flight are answered."""
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # `launch` has held them back until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)


def set_name(name: str) -> None:
    """Name the process in `top` and `ps -o comm`. Linux keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()))


def _set_limits(arguments: StartArguments) -> list[str]:
    """Set priority, CPUs, memory, and no core dump: that of a model takes longer than its restart.

    Returns a warning for each limit that this system does not have.
    """
    warnings = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(arguments.niceness)
    if arguments.cpus is not None and not _set_cpus(arguments.cpus):
        warnings.append("cpus: this system does not bind processes to CPUs; the setting has no effect")
    limit = arguments.max_process_memory_bytes
    if limit is not None:
        _limit_memory(limit)
        if sys.platform != "linux":
            warnings.append("max_process_memory: this system does not hold the limit; the setting has no effect")
    return warnings


def _limit_memory(limit: int) -> None:
    """Limit the private writable memory of the process, in bytes. Linux refuses each allocation beyond it.

    Threads count with their whole stacks of 8 MiB, and weight files that torch maps count too; shared memory does not.
    Measured with MiniLM and limits from 100 to 700 MiB: both frameworks raise an exception, in the load and in a batch,
    and the process keeps running. It ends where an allocation cannot fail: in the import of torch (SIGABRT,
    std::bad_alloc), and when OpenBLAS gets no buffer for a product of numpy (exit status 1).
    """
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _set_cpus(cpus: frozenset[int]) -> bool:
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cpus)
    return True


def _log(level: str, warnings: list[str]) -> None:
    # structlog takes most of the time of this module, and the limits must hold for it too. Without rich, which only
    # its format for terminals uses, it takes 5 MB and 50 ms less.
    modules = cast(dict[str, Any], sys.modules)
    modules["rich"] = None
    import structlog

    del modules["rich"]
    from frameworks.engine.process.host.logs import configure_logging

    configure_logging(level)
    for warning in warnings:
        structlog.get_logger(__name__).warning(warning)


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
