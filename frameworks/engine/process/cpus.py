"""Select the CPUs of a process from its model's entry."""

import os

from frameworks.core.cpus import format_cpus, parse_cpus
from frameworks.core.errors import InvalidModel


def select_cpus(text: str | None) -> frozenset[int] | None:
    """Return the CPUs of a model's `cpus`; None for all CPUs of the server.

    Raises InvalidModel where the server may not use one of them. Not checked where the system cannot bind processes.
    """
    if text is None:
        return None
    cpus = parse_cpus(text)
    usable = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
    if not cpus <= usable:
        raise InvalidModel(
            f'cpus: expected CPUs that the server may use ("{format_cpus(usable)}"), '
            f'got "{format_cpus(cpus - usable)}" beside them; correct the list'
        )
    return cpus
