"""Report the long work of this process: a bar on a terminal, else a line of the log every few seconds."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from app.observability.logs.logs import show_line
from app.observability.logs.progress_bars import draw_bar, format_seconds
from frameworks.core.progress import Work, WorkState, running
from memory.sizes import format_size

log = structlog.get_logger(__name__)

FIRST_LINE_S, LINE_EVERY_S = 2.0, 5.0
"""A work gets its first line of the log after this time, and a further one as often."""
_LOOK_S, _DRAW_S = 0.5, 0.2
_BYTES = "bytes"
_VERBS = {
    "compile": "compiling",
    "load": "loading",
    "download": "downloading",
    "quantize": "quantizing",
    "index": "building the index",
}


class ProgressReporter:
    """Shows the works that run. Owned by the event loop."""

    def __init__(
        self,
        show: Callable[[str], None] = show_line,
        is_terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show`: draws a line in the place of the last one; "" removes it. `is_terminal`: None looks at standard
        error.
        """
        self._show = show
        self._is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._clock = clock
        self._has_bar = False
        # When each work got its last line.
        self._logged: dict[Work, float] = {}

    async def run(self) -> None:
        """Report until this is cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(_DRAW_S if self._has_bar else _LOOK_S)
        finally:
            self._draw([])

    def look(self) -> None:
        """Report the works of now."""
        works = running()
        if self._is_terminal:
            self._draw([each.state for each in _innermost(works)])
        else:
            self._log(works)

    def _log(self, works: Sequence[Work]) -> None:
        now_s = self._clock()
        for work in _innermost(works):
            state = work.state
            if now_s - self._logged.get(work, now_s - state.seconds) >= self._interval_s(work):
                self._logged[work] = now_s
                log.info("work in progress", **_fields(state))
        for work in [each for each in self._logged if each not in works]:
            del self._logged[work]
            event = "work failed" if work.has_failed else "work ended"
            log.info(event, kind=work.kind, name=work.name, seconds=round(work.state.seconds, 1))

    def _interval_s(self, work: Work) -> float:
        return LINE_EVERY_S if work in self._logged else FIRST_LINE_S

    def _draw(self, states: Sequence[WorkState]) -> None:
        if states:
            self._has_bar = True
            self._show(_cut(describe(states[-1], len(states) - 1)))
        elif self._has_bar:
            self._has_bar = False
            self._show("")


def _innermost(works: Sequence[Work]) -> list[Work]:
    """Return of each model and collection the work that began last: the other ones wait for it."""
    return list({(each.subject, each.name): each for each in works}.values())


def describe(state: WorkState, num_others: int = 0) -> str:
    """Return the line of a work on a terminal. `num_others`: works that have no line."""
    parts = [f"{_VERBS[state.kind]} {state.name}".rstrip()]
    if state.what:
        parts.append(state.what)
    if state.total:
        parts.append(_count(state))
    parts.append(format_seconds(state.seconds))
    others = f" (and {num_others} more)" if num_others else ""
    return f"{draw_bar(state.done, state.total)} {', '.join(parts)}{others}"


def _count(state: WorkState) -> str:
    if state.unit == _BYTES:
        return f"{format_size(state.done)} of {format_size(state.total)}"
    return f"{state.done:,} of {state.total:,} {state.unit}".rstrip()


def _fields(state: WorkState) -> dict[str, object]:
    absent = () if state.total else ("done", "total", "unit")
    return {name: value for name, value in state.plain().items() if name not in absent and value != ""}


def _cut(line: str) -> str:
    """Return as much as a row of the terminal takes: a longer line could not be drawn over."""
    return line[: max(1, shutil.get_terminal_size().columns - 1)]
