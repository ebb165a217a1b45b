"""Who leaves next: pure policy over versions whose state is set by hand."""

from dataclasses import dataclass, field
from typing import cast

from frameworks.models.eviction import Victim, is_bound_to_stay, may_leave, next_victim
from frameworks.models.version import ModelVersion
from frameworks.settings import OnnxModelEntry
from tests.support.managing import entry


@dataclass(eq=False)
class Identity:
    """What the policy asks of a model."""

    entry: OnnxModelEntry


@dataclass(eq=False)
class Standing:
    """What the policy asks of a version that is in memory."""

    ready_since_s: float = 0.0
    last_used_s: float | None = None
    load_s: float = 0.0
    is_used: bool = False
    is_ready: bool = True
    has_died: bool = False
    flight: object = None
    model: Identity = field(default_factory=lambda: Identity(entry()))


def pinned() -> Identity:
    return Identity(entry(pinned=True))


def victim(*versions: Standing, now_s: float = 100.0) -> tuple[Standing, float] | None:
    chosen: Victim | None = next_victim(cast("tuple[ModelVersion, ...]", versions), now_s)
    return None if chosen is None else (cast("Standing", chosen.version), chosen.wait_s)


def test_the_least_recently_used_leaves_at_once() -> None:
    older, newer = Standing(last_used_s=5.0), Standing(last_used_s=9.0)
    assert victim(newer, older) == (older, 0.0)


def test_one_that_was_never_used_counts_from_its_load() -> None:
    used, fresh = Standing(ready_since_s=1.0, last_used_s=20.0), Standing(ready_since_s=30.0)
    assert victim(used, fresh) == (used, 0.0)
    # Loaded again after its last use of long ago.
    back = Standing(ready_since_s=40.0, last_used_s=2.0)
    assert victim(fresh, back) == (fresh, 0.0)


def test_the_idle_leave_before_the_busy() -> None:
    idle, busy = Standing(last_used_s=50.0), Standing(last_used_s=1.0, is_used=True)
    assert victim(busy, idle) == (idle, 0.0)


def test_where_all_are_busy_the_one_loaded_longest_stays_as_long_as_its_load_took() -> None:
    long, short = Standing(90.0, load_s=15.0, is_used=True), Standing(95.0, load_s=1.0, is_used=True)
    assert victim(short, long, now_s=100.0) == (long, 5.0)
    assert victim(short, long, now_s=105.0) == (long, 0.0)
    assert victim(short, long, now_s=200.0) == (long, 0.0)


def test_the_dead_go_before_everybody() -> None:
    dead = Standing(last_used_s=99.0, is_ready=False, has_died=True, is_used=True)
    assert victim(Standing(last_used_s=1.0), dead) == (dead, 0.0)


def test_the_pinned_stay_unless_they_are_dead() -> None:
    staying = Standing(model=pinned())
    assert victim(staying) is None
    assert is_bound_to_stay(cast("ModelVersion", staying))
    dead = Standing(model=pinned(), is_ready=False, has_died=True)
    assert victim(staying, dead) == (dead, 0.0)
    assert not is_bound_to_stay(cast("ModelVersion", dead))


def test_who_is_on_the_way_in_or_out_is_nobody_s_victim() -> None:
    moving = Standing(is_ready=False)
    assert victim(moving) is None
    assert not may_leave(cast("ModelVersion", moving))
    assert not is_bound_to_stay(cast("ModelVersion", moving))
    # Dead, and about to be loaded anew: its load sends it out.
    assert victim(Standing(is_ready=False, has_died=True, flight=object())) is None
