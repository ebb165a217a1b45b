"""Long work: its phases, its end, and its thread."""

import threading
from contextvars import copy_context
from functools import partial

import pytest

from frameworks.core.progress import KINDS, MAX_SHOWN, Work, begin, current, phase, running, states, step, working


def of(name: str) -> list[tuple[str, str, int, int]]:
    found = states(lambda work: work.name == name)
    return [(each.kind, each.what, each.done, each.total) for each in found]


def test_work_counts_its_phase() -> None:
    now_s = 5.0
    work = Work("index", "numbers", "collection", lambda: now_s)
    work.phase("rows", 10, "rows")
    work.step(3)
    work.step()
    now_s = 7.04
    assert work.state.plain() == {
        "kind": "index",
        "subject": "collection",
        "name": "numbers",
        "what": "rows",
        "done": 4,
        "total": 10,
        "unit": "rows",
        "seconds": 2.0,
    }
    work.phase("recall")
    assert (work.state.done, work.state.total) == (0, 0)


def test_nested_work_takes_the_name() -> None:
    with working("load", "nested"):
        phase("files", 2)
        with working("quantize"):
            phase("layers", 8)
            step(5)
            assert of("nested") == [("load", "files", 0, 2), ("quantize", "layers", 5, 8)]
        step()
        assert of("nested") == [("load", "files", 1, 2)]
    assert of("nested") == []
    assert current() is None


def test_failed_work_ends() -> None:
    with pytest.raises(ValueError, match="x"), working("load", "failed") as work:
        raise ValueError("x")
    assert work.has_failed
    assert of("failed") == []


def test_other_thread_counts_with_context_only() -> None:
    with working("load", "threads"):
        phase("layers", 4)
        for run in (step, partial(copy_context().run, step)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        assert of("threads") == [("load", "layers", 1, 4)]


def test_readers_get_bounded_number() -> None:
    works = [begin(KINDS[index % len(KINDS)], "many") for index in range(MAX_SHOWN + 5)]
    try:
        assert len(running()) == MAX_SHOWN
        assert len(of("many")) == MAX_SHOWN
    finally:
        for work in works:
            work.end()
    work.end()
    assert of("many") == []
