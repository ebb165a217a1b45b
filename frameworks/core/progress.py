"""Hold the long work that runs in this process: its kind, its model or collection, and how much of it is done.

Code that takes long calls `working` or `begin`, and functions deep below it `phase` and `step`. Readers call `running`
and `states`. Any thread may call all of it: each work has one writer.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal["compile", "load", "download", "quantize", "index"]
Subject = Literal["model", "collection"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_SHOWN = 32
"""Maximum works that readers get, the oldest first."""


@dataclass(frozen=True, slots=True)
class WorkState:
    """A work at one moment. `name`: of the `subject`. `what`: the current phase. `done` of `total` in `unit`, such as
    bytes or layers; `total` 0: unknown. `seconds`: since the start of the work.
    """

    kind: Kind
    subject: Subject
    name: str
    what: str
    done: int
    total: int
    unit: str
    seconds: float

    def plain(self) -> dict[str, Any]:
        """Return the fields by their names."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


class Work:
    """One work that runs. Made by `begin`."""

    def __init__(
        self, kind: Kind, name: str, subject: Subject = "model", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.kind, self.name, self.subject = kind, name, subject
        self.has_failed = False
        self._clock = clock
        self._started_s = clock()
        # One tuple, so that readers never see the numbers of two phases.
        self._phase: tuple[str, int, int, str] = ("", 0, 0, "")

    @property
    def state(self) -> WorkState:
        """The state now."""
        what, done, total, unit = self._phase
        return WorkState(self.kind, self.subject, self.name, what, done, total, unit, self._clock() - self._started_s)

    def phase(self, what: str, total: int = 0, unit: str = "", done: int = 0) -> None:
        """Begin the next phase. `what`: a few words. `total`: 0 if unknown."""
        self._phase = what, done, total, unit

    def step(self, count: int = 1) -> None:
        """Count what is done of the phase."""
        what, done, total, unit = self._phase
        self._phase = what, done + count, total, unit

    def end(self) -> None:
        """End the work. A second call does nothing."""
        _works.pop(id(self), None)


_works: dict[int, Work] = {}
_current: ContextVar[Work | None] = ContextVar("work", default=None)


def begin(kind: Kind, name: str, subject: Subject = "model") -> Work:
    """Begin a work whose end another thread or a callback calls. `name`: of the model or the collection."""
    work = Work(kind, name, subject)
    _works[id(work)] = work
    return work


@contextmanager
def working(kind: Kind, name: str | None = None, subject: Subject = "model") -> Iterator[Work]:
    """Run a work within the block. Its thread, and those with its context, count on it by `phase` and `step`.

    `name`: None takes that of the work around it.
    """
    around = _current.get()
    work = begin(kind, name or ("" if around is None else around.name), subject)
    token = _current.set(work)
    try:
        yield work
    except BaseException:
        work.has_failed = True
        raise
    finally:
        _current.reset(token)
        work.end()


def phase(what: str, total: int = 0, unit: str = "") -> None:
    """Begin the next phase of the innermost work of this thread; without one this does nothing."""
    work = _current.get()
    if work is not None:
        work.phase(what, total, unit)


def step(count: int = 1) -> None:
    """Count what is done of the innermost work of this thread."""
    work = _current.get()
    if work is not None:
        work.step(count)


def current() -> Work | None:
    """Return the innermost work of this thread, or of this task."""
    return _current.get()


def running() -> list[Work]:
    """Return the works of this process, the oldest first, at most MAX_SHOWN."""
    return list(_works.values())[:MAX_SHOWN]


def states(is_shown: Callable[[Work], bool]) -> list[WorkState]:
    """Return the states of these works, the oldest first, at most MAX_SHOWN."""
    return [work.state for work in list(_works.values()) if is_shown(work)][:MAX_SHOWN]
