"""Record the phases of long work."""

from typing import Any

import pytest

from frameworks.core.progress import Work, WorkState


def ended_phases(monkeypatch: pytest.MonkeyPatch) -> list[WorkState]:
    """Return a list that gets the state of each phase at its end; the last one of a work only where it has ended."""
    ended: list[WorkState] = []
    begin, end = Work.phase, Work.end

    def note(work: Work) -> None:
        if work.state.what:
            ended.append(work.state)

    def begin_next(work: Work, *arguments: Any) -> None:
        note(work)
        begin(work, *arguments)

    def end_last(work: Work) -> None:
        note(work)
        end(work)

    monkeypatch.setattr(Work, "phase", begin_next)
    monkeypatch.setattr(Work, "end", end_last)
    return ended
