"""Batches of sampled requests: the spans that they name, and their bounds."""

import os
import time
from typing import Any

import pytest
from msgspec import ValidationError, msgpack

from frameworks.core.timings import MAX_LINKS, SPAN_BYTES, BatchRun, RunTrace, note_batch, unix_ns


def trace(number: int) -> RunTrace:
    return RunTrace(number.to_bytes(SPAN_BYTES))


def note(*traces: RunTrace) -> None:
    note_batch(traces, time.perf_counter() - 0.5, 0.25, 3, "cpu", 1)


def test_first_request_exports_batch() -> None:
    first, second = trace(1), trace(2)
    note(first, second)
    (exported,), (linked,) = first.runs, second.runs
    assert exported.requests == (first.span, second.span)
    assert linked == exported._replace(requests=())
    assert exported[2:7] == (250_000_000, 3, "cpu", os.getpid(), 1)
    assert 0.5e9 <= time.time_ns() - exported.begun_ns < 60e9


def test_each_batch_has_span_of_its_own() -> None:
    one = trace(1)
    note(one)
    note(one)
    assert len({run.span for run in one.runs}) == 2
    assert all(run.requests == (one.span,) and len(run.span) == SPAN_BYTES for run in one.runs)


def test_parts_of_one_request_note_batch_once() -> None:
    one, other = trace(1), trace(2)
    note(one, one, other, other)
    assert [len(each.runs) for each in (one, other)] == [1, 1]
    assert one.runs[0].requests == (one.span, other.span)


def test_links_are_bounded() -> None:
    many = [trace(number) for number in range(MAX_LINKS + 5)]
    note(*many)
    assert many[0].runs[0].requests == tuple(each.span for each in many[:MAX_LINKS])
    assert len(many[-1].runs) == 1
    for _ in range(MAX_LINKS + 5):
        note(many[0], many[-1])
    assert [len(many[0].runs), len(many[-1].runs)] == [MAX_LINKS, MAX_LINKS]
    late = trace(99)
    note(many[0], late)
    assert late.runs[0].requests == (late.span,)
    many[1].add(many[0].runs)
    assert len(many[1].runs) == MAX_LINKS


@pytest.mark.parametrize(
    "damaged",
    [
        {"span": b"short"},
        {"begun_ns": -1},
        {"duration_ns": 2**63},
        {"rows": -1},
        {"device": "c" * 65},
        {"requests": (b"short",)},
        {"requests": (b"x" * SPAN_BYTES,) * (MAX_LINKS + 1)},
    ],
)
def test_damaged_run_of_process_is_refused(damaged: dict[str, Any]) -> None:
    run = BatchRun(b"x" * SPAN_BYTES, 1, 2, 3, "cpu", 4, 5, (b"y" * SPAN_BYTES,))
    decoder = msgpack.Decoder(BatchRun)
    assert decoder.decode(msgpack.encode(run)) == run
    with pytest.raises(ValidationError):
        decoder.decode(msgpack.encode(run._replace(**damaged)))


def test_suspension_between_clocks_changes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is suspended for a second within the first two pairs of reads."""
    clock_ns, suspensions = 5_000, iter([1_000_000_000, 1_000_000_000, 0])

    def counter_ns() -> int:
        return clock_ns

    def unix_time_ns() -> int:
        nonlocal clock_ns
        found = clock_ns + 7_000_000_000_000
        clock_ns += next(suspensions)
        return found

    monkeypatch.setattr(time, "perf_counter_ns", counter_ns)
    monkeypatch.setattr(time, "time_ns", unix_time_ns)
    assert unix_ns(2.0) == 7_002_000_000_000
