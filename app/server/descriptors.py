"""The limit on open files of the process, which every connection counts towards."""

import os

import structlog

log = structlog.get_logger(__name__)

_FEW = 1024
"""Fewer connections than this may not suffice for the clients of a server."""

_RESERVED = 1536
"""File descriptors for other uses than HTTP connections: 1,024 for those of gRPC, and 512 for model files and pipes."""


def connections_within_limit(max_connections: int, logs_warnings: bool = True) -> int:
    """Raise the soft limit on open files as far as `max_connections` need and the hard limit permits.

    Returns how many connections fit below the limit. A warning says so if they are fewer, and below 1,024.
    """
    if os.name == "nt":
        return max_connections
    import resource

    needed = max_connections + _RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS refuses more than its own maximum, although the hard limit is infinite
        wanted = soft
    if wanted >= needed:
        return max_connections
    # Below a very low limit half of the descriptors are for connections.
    fitting = max(wanted - _RESERVED, wanted // 2, 1)
    if not logs_warnings or fitting >= _FEW:
        return fitting
    log.warning(
        "the limit on open files is lower than server.max_connections needs",
        limit=wanted,
        needed=needed,
        max_connections=fitting,
    )
    return fitting
