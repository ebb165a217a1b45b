"""Kill -9 during upserts, deletes and rebuilds of the index: what was acknowledged is there, and nothing in part."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from extensions.search.collections.index.index_file import FILE as INDEX_FILE
from extensions.search.collections.store.sqlite_store import FILE
from tests.extensions.search.collections import changing_child
from tests.extensions.search.collections.changing_child import BATCH, DIMENSIONS, INDEX_ROWS, records_of_batch
from tests.extensions.search.collections.model import Opened, settings_of

pytestmark = pytest.mark.extended

Versions = dict[int, tuple[int, set[int]]]
"""Batch → the last acknowledged version, and those that may have come after it."""


def _changes_until_kill(folder: Path, first: int, changes: int, delay_s: float) -> list[str]:
    """Return the whole lines of a child that was killed some time after so many lines."""
    command = [sys.executable, "-m", changing_child.__name__, str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        lines = [child.stdout.readline() for _ in range(changes)]
        time.sleep(delay_s)
        os.kill(child.pid, signal.SIGKILL)
        return [*lines, *(line for line in child.stdout if line.endswith("\n"))]


def _note(versions: Versions, lines: list[str]) -> None:
    for line in lines:
        word, batch, version = line.split()
        known, possible = versions.get(int(batch), (0, set()))
        if word == "begin":
            versions[int(batch)] = known, {*possible, int(version)}
        else:
            versions[int(batch)] = int(version), set()


def _check(opened: Opened, versions: Versions) -> None:
    rows = 0
    for batch, (known, possible) in versions.items():
        found = opened.run(opened.collection.get([f"{batch}-{i}" for i in range(BATCH)], include_vectors=True))
        present = [each for each in found if each is not None]
        states = {each.metadata["version"] for each in present if each.metadata is not None} or {0}
        assert len(states) == 1, f"batch {batch} is there in part"
        (state,) = states
        assert state in {known, *possible}
        assert len(present) == (BATCH if state else 0)
        for record, expected in zip(present, records_of_batch(batch, int(str(state))), strict=bool(state)):
            assert record.vector is not None
            assert np.array_equal(record.vector, np.asarray(expected.vector))
        versions[batch] = int(str(state)), set()
        rows += len(present)
    assert opened.run(opened.collection.info()).rows == rows


def _check_searches(opened: Opened, versions: Versions) -> None:
    """Each record finds itself, exactly; with the index most do."""
    there = [records_of_batch(batch, known)[0] for batch, (known, _) in versions.items() if known][-50:]
    queries = np.stack([np.asarray(each.vector) for each in there])
    exact = opened.run(opened.collection.search(queries, 1, exact=True))
    assert [hits[0].id for hits in exact] == [each.id for each in there]
    hits = opened.run(opened.collection.search(queries, 1))
    assert all(len(each) == 1 for each in hits)


def _run(folder: Path, rounds: int) -> int:
    """Return in how many rounds there was an index: it depends on the speed of the machine."""
    generator = random.Random(77)
    versions: Versions = {}
    has_index = 0
    for _ in range(rounds):
        first = max(versions, default=-1) + 1
        lines = _changes_until_kill(folder, first, generator.randint(1, 200), generator.random() / 20)
        _note(versions, lines)
        opened = Opened(settings_of(folder, DIMENSIONS, index_rows=INDEX_ROWS, index_recall=0.1))
        _check(opened, versions)
        _check_searches(opened, versions)
        opened.close()
        has_index += (folder / "notes" / INDEX_FILE).exists()
        assert {each.name for each in (folder / "notes").iterdir()} <= {FILE, INDEX_FILE, f"{INDEX_FILE}.new", "lock"}
    return has_index


def test_changes_survive_kills(tmp_path: Path) -> None:
    _run(tmp_path, 4)


@pytest.mark.nightly
def test_changes_survive_many_kills(tmp_path: Path) -> None:
    assert _run(tmp_path, 150), "no round was long enough for an index"
