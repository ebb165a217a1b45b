"""Who leaves when room is wanted: pure policy over the versions that are loaded."""

from collections.abc import Iterable
from typing import NamedTuple

from frameworks.models.version import ModelVersion


class Victim(NamedTuple):
    """Who leaves next, and in how many seconds it may."""

    version: ModelVersion
    wait_s: float


def is_bound_to_stay(version: ModelVersion) -> bool:
    """Whether a version stays whatever is asked for: one that is pinned, unless it is dead."""
    return version.model.entry.pinned and not version.has_died


def may_leave(version: ModelVersion) -> bool:
    """Whether a version that is loaded may be sent out for another now."""
    if version.flight is not None:
        return False  # one that has died and is loaded anew: it goes by itself
    return version.has_died or (version.is_ready and not version.model.entry.pinned)


def next_victim(versions: Iterable[ModelVersion], now_s: float) -> Victim | None:
    """One that has died; else the least recently used of those that nobody uses; where all are in use, the one that has
    been loaded longest.

    One that is in use stays at least as long as its load took: where the working set does not fit, no more than half of
    the time goes into loads. It is drained, so it serves all who have come for it before it leaves.
    """
    candidates = [version for version in versions if may_leave(version)]
    dead = [version for version in candidates if version.has_died]
    if dead:
        return Victim(dead[0], 0.0)
    idle = [version for version in candidates if not version.is_used]
    if idle:
        return Victim(min(idle, key=lambda version: max(version.last_used_s or 0.0, version.ready_since_s)), 0.0)
    if not candidates:
        return None
    longest = min(candidates, key=lambda version: version.ready_since_s)
    return Victim(longest, max(0.0, longest.ready_since_s + longest.load_s - now_s))
