"""The report of long work: a bar on a terminal, else lines of the log."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from structlog.testing import capture_logs

from app.observability import progress
from app.observability.progress import ProgressReporter, describe
from frameworks.core.progress import Kind, Work, WorkState


class Works:
    """The works of a test, in the place of those of the process. `now_s`: the time of all clocks."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.running: list[Work] = []

    def clock(self) -> float:
        return self.now_s

    @contextmanager
    def work(self, kind: Kind, name: str) -> Iterator[Work]:
        made = Work(kind, name, clock=self.clock)
        self.running.append(made)
        yield made
        self.running.remove(made)


@pytest.fixture(name="works")
def _works(monkeypatch: pytest.MonkeyPatch) -> Works:
    works = Works()
    monkeypatch.setattr(progress, "running", lambda: works.running)
    return works


def logged(works: Works, reporter: ProgressReporter, times_s: list[float]) -> list[dict[str, object]]:
    with capture_logs() as logs:
        for works.now_s in times_s:
            reporter.look()
    return [dict(each) for each in logs]


def test_log_gets_line_every_five_seconds(works: Works) -> None:
    reporter = ProgressReporter(is_terminal=False, clock=works.clock)
    with works.work("compile", "m") as work:
        work.phase("kernels", 2, "kernels", 1)
        lines = logged(works, reporter, [0.5, 1.5, 2.0, 3.0, 6.5, 7.0, 11.9])
    assert [each["seconds"] for each in lines] == [2.0, 7.0]
    assert lines[0] == {
        "event": "work in progress", "log_level": "info", "kind": "compile", "subject": "model", "name": "m",
        "what": "kernels", "done": 1, "total": 2, "unit": "kernels", "seconds": 2.0,
    }  # fmt: skip
    work.has_failed = True
    [end] = logged(works, reporter, [12.0, 13.0])
    assert end == {"event": "work failed", "log_level": "info", "kind": "compile", "name": "m", "seconds": 12.0}


def test_short_work_is_not_logged(works: Works) -> None:
    reporter = ProgressReporter(is_terminal=False, clock=works.clock)
    with works.work("load", "m"):
        assert not logged(works, reporter, [0.5, 1.9])
    assert not logged(works, reporter, [2.5])


def test_work_that_waits_for_another_is_silent(works: Works) -> None:
    reporter = ProgressReporter(is_terminal=False, clock=works.clock)
    with works.work("load", "m"), works.work("quantize", "m"), works.work("load", "other"):
        lines = logged(works, reporter, [3.0])
    assert [(each["kind"], each["name"]) for each in lines] == [("quantize", "m"), ("load", "other")]


def test_terminal_gets_one_line(works: Works) -> None:
    shown: list[str] = []
    reporter = ProgressReporter(shown.append, is_terminal=True, clock=works.clock)
    reporter.look()
    assert not shown
    with ExitStack() as stack:
        work = stack.enter_context(works.work("download", "first"))
        work.phase("files", 2 * 1024**3, "bytes", 1024**3)
        works.now_s = 65.0
        reporter.look()
        stack.enter_context(works.work("load", "other"))
        reporter.look()
    reporter.look()
    reporter.look()
    assert shown[0] == f"{'█' * 12}{'░' * 12} downloading first, files, 1 GiB of 2 GiB, 1m05s"
    assert shown[1].endswith(" loading other, 0s (and 1 more)")
    assert shown[2:] == [""]


@pytest.mark.parametrize("columns", [10, 40])
def test_line_fits_the_terminal(works: Works, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown: list[str] = []
    reporter = ProgressReporter(shown.append, is_terminal=True, clock=works.clock)
    with works.work("load", "a-long-name-of-a-model"):
        reporter.look()
    assert len(shown[0]) == columns - 1


def test_unknown_total_has_no_count() -> None:
    state = WorkState("index", "collection", "c", "", 0, 0, "", 3.0)
    assert describe(state) == f"{'░' * 24} building the index c, 3s"
