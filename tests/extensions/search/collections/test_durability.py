"""Acknowledged records survive a killed process, a torn log and a full disk."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extensions.search.collections.contract import (
    CollectionFailed,
    CollectionInUse,
    InvalidCollection,
    Metric,
    StorageFull,
)
from extensions.search.collections.store.segments import Segments
from extensions.search.collections.store.sqlite_store import FILE
from frameworks.core.errors import OutOfMemory
from frameworks.core.filters import parse_filter
from frameworks.core.vector_search import Record
from tests.extensions.search.collections import writing_child
from tests.extensions.search.collections.model import Opened, random_vectors, records_of, settings_of
from tests.extensions.search.collections.writing_child import BATCH, DIMENSIONS, records_of_batch, vector_of


def _kill_while_writing(folder: Path, first: int, acknowledged: int, delay_s: float) -> list[int]:
    """Return the batches that a child acknowledged before it was killed."""
    command = [sys.executable, "-m", writing_child.__name__, str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        lines = [child.stdout.readline() for _ in range(acknowledged)]
        time.sleep(delay_s)
        os.kill(child.pid, signal.SIGKILL)
        # A line that the kill cut in two is no acknowledgement.
        lines += [line for line in child.stdout if line.endswith("\n")]
    return [int(line) for line in lines]


@pytest.mark.extended
def test_acknowledged_upserts_survive_kills(tmp_path: Path) -> None:
    generator = random.Random(23)
    acknowledged: set[int] = set()
    first = 0
    for _ in range(4):
        acknowledged |= set(_kill_while_writing(tmp_path, first, generator.randint(1, 30), generator.random() / 100))
        opened = Opened(settings_of(tmp_path, DIMENSIONS))
        # Three callers write: at most three more batches may have been committed.
        first = max(acknowledged) + 4
        for batch in range(first):
            ids = [record.id for record in records_of_batch(batch)]
            found = opened.run(opened.collection.get(ids, include_vectors=True))
            present = [each for each in found if each is not None]
            assert len(present) in ({BATCH} if batch in acknowledged else {0, BATCH})
            for index, each in enumerate(present):
                assert np.array_equal(each.vector, vector_of(batch, index))  # type: ignore[arg-type]
        newest = max(acknowledged)
        hits = opened.run(opened.collection.search(vector_of(newest, 0)[None], 1))
        assert hits[0][0].id == f"{newest}-0"
        opened.close()
    assert len(acknowledged) > 4


def test_torn_log_is_rolled_back(tmp_path: Path) -> None:
    vectors = random_vectors(30, 8)
    child_files = tmp_path / "copy" / "notes"
    child_files.mkdir(parents=True)
    opened = Opened(settings_of(tmp_path, 8))
    opened.run(opened.collection.upsert(records_of(vectors[:10])))
    log = tmp_path / "notes" / f"{FILE}-wal"
    whole_bytes = log.stat().st_size
    opened.run(opened.collection.upsert(records_of(vectors[10:], "late-")))
    # The files as a crash leaves them: the second commit is half on the disk, and its end was never written.
    for each in (tmp_path / "notes").iterdir():
        (child_files / each.name).write_bytes(each.read_bytes())
    torn = bytearray(log.read_bytes())
    opened.close()
    torn[(whole_bytes + len(torn)) // 2 :] = bytes(len(torn) - (whole_bytes + len(torn)) // 2)
    (child_files / log.name).write_bytes(torn)
    (child_files / f"{FILE}-shm").unlink(missing_ok=True)
    reopened = Opened(settings_of(tmp_path / "copy", 8))
    assert reopened.run(reopened.collection.info()).rows == 10
    assert reopened.run(reopened.collection.upsert(records_of(vectors[10:], "late-"))) == 20
    reopened.close()


def test_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    vectors = random_vectors(2000, 64)
    opened = Opened(settings_of(tmp_path, 64))
    opened.run(opened.collection.upsert(records_of(vectors[:100])))
    _limit_pages(opened, 40)
    with pytest.raises(StorageFull, match="full one; nothing was written"):
        opened.run(opened.collection.upsert(records_of(vectors)))
    assert opened.run(opened.collection.info()).rows == 100

    async def mixed() -> list[int | BaseException]:
        calls = [opened.collection.upsert(records_of(vectors)), opened.collection.upsert(records_of(vectors[:1], "n"))]
        return await asyncio.gather(*calls, return_exceptions=True)

    refused, written = opened.run(mixed())
    assert isinstance(refused, StorageFull)
    assert written == 1
    hits = opened.run(opened.collection.search(vectors[:1], 2))
    assert {hit.id for hit in hits[0]} == {"0", "n0"}
    _limit_pages(opened, 1 << 30)
    assert opened.run(opened.collection.upsert(records_of(vectors))) == 2000
    opened.close()


def _limit_pages(opened: Opened, pages: int) -> None:
    """Make SQLite answer as on a disk that has room for so many pages."""
    collection: Any = opened.collection
    collection._opened.store._connection.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.extended
def test_refused_write_of_disk_loses_nothing(tmp_path: Path) -> None:
    script = """
import asyncio, resource, sys
from pathlib import Path
from extensions.search.collections.contract import CollectionFailed
from tests.extensions.search.collections.model import Opened, random_vectors, records_of, settings_of
opened = Opened(settings_of(Path(sys.argv[1]), 64))
vectors = random_vectors(5000, 64)
opened.run(opened.collection.upsert(records_of(vectors[:100])))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
try:
    opened.run(opened.collection.upsert(records_of(vectors, "late-")))
except CollectionFailed as error:
    print("refused", opened.run(opened.collection.info()).rows, error)
opened.run(opened.collection.delete(["0"]))
print(len(opened.run(opened.collection.search(vectors[:1], 1000))[0]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("refused 100"), ended.stderr
    assert lines[1] == "99"
    opened = Opened(settings_of(tmp_path, 64))
    assert opened.run(opened.collection.info()).rows == 99
    opened.close()


def test_second_opening_is_refused_until_close(tmp_path: Path) -> None:
    first = Opened(settings_of(tmp_path, 4))
    with pytest.raises(CollectionInUse, match="a collection has one server process"):
        Opened(settings_of(tmp_path, 4))
    first.close()
    Opened(settings_of(tmp_path, 4)).close()


@pytest.mark.parametrize(
    ("changed", "message"), [({"dimensions": 5}, "expected dimensions 4"), ({"metric": Metric.DOT}, "cosine")]
)
def test_open_with_other_settings_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    Opened(settings_of(tmp_path, 4)).close()
    with pytest.raises(InvalidCollection, match=message):
        Opened(settings_of(tmp_path, **{"dimensions": 4, **changed}))


def test_open_of_damaged_file_is_refused(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(random_vectors(500, 4))))
    opened.close()
    file = tmp_path / "notes" / FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
    file.write_bytes(content)
    with pytest.raises(InvalidCollection, match="damaged"):
        Opened(settings_of(tmp_path, 4))


@pytest.mark.parametrize("rows", [0, 5])
def test_file_without_content_is_damaged(tmp_path: Path, rows: int) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(random_vectors(rows, 4))))
    opened.close()
    file = tmp_path / "notes" / FILE
    file.write_bytes(b"")
    with pytest.raises(InvalidCollection, match="damaged"):
        Opened(settings_of(tmp_path, 4))
    assert not file.stat().st_size


def test_log_without_its_file_is_damaged(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(random_vectors(5, 4))))
    log = tmp_path / "notes" / f"{FILE}-wal"
    content = log.read_bytes()
    opened.close()
    (tmp_path / "notes" / FILE).unlink()
    log.write_bytes(content)
    with pytest.raises(InvalidCollection, match="damaged"):
        Opened(settings_of(tmp_path, 4))


def test_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("records.new", "records.new-journal"):
        (folder / name).write_bytes(b"incomplete")
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(random_vectors(5, 4))))
    opened.close()
    assert not list(folder.glob("records.new*"))


def test_vector_of_wrong_size_is_refused(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(random_vectors(5, 4))))
    opened.close()
    with sqlite3.connect(tmp_path / "notes" / FILE) as connection:
        connection.execute("UPDATE vectors SET vector = x'0000' WHERE row = 3")
    connection.close()
    with pytest.raises(InvalidCollection, match="a vector is damaged"):
        Opened(settings_of(tmp_path, 4))


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("a file")
    with pytest.raises(CollectionFailed, match="cannot be written"):
        Opened(settings_of(tmp_path, 4))


def test_originals_are_kept_for_cosine(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 3))
    vector = np.array([3e14, -4e-20, 7], dtype=np.float32)
    opened.run(opened.collection.upsert([Record("a", vector, None, {"k": 1})]))
    hits = opened.run(opened.collection.search(vector[None], 1, where=parse_filter({"k": 1}), include_vectors=True))
    assert np.array_equal(hits[0][0].vector, vector)  # type: ignore[arg-type]
    opened.close()


def test_change_that_memory_misses_ends_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_vectors(3, 4)
    opened = Opened(settings_of(tmp_path, 4))
    opened.run(opened.collection.upsert(records_of(vectors[:1])))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "publish", fail)
        with pytest.raises(CollectionFailed, match="on the disk and not in memory; restart"):
            opened.run(opened.collection.upsert(records_of(vectors)))
    with pytest.raises(CollectionFailed, match="restart"):
        opened.run(opened.collection.delete(["0"]))
    opened.close()
    opened = Opened(settings_of(tmp_path, 4))
    assert opened.run(opened.collection.info()).rows == 3
    opened.close()


def test_upsert_without_memory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_vectors(3, 4)
    opened = Opened(settings_of(tmp_path, 4))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "deletion", fail)
        with pytest.raises(OutOfMemory, match="nothing was written"):
            opened.run(opened.collection.upsert(records_of(vectors)))
    assert opened.run(opened.collection.info()).rows == 0
    assert opened.run(opened.collection.upsert(records_of(vectors))) == 3
    opened.close()


def test_commits_are_synced(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    collection: Any = opened.collection
    connection = collection._opened.store._connection
    # No test can cut the power: 2 is FULL, which syncs the log at each commit.
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    opened.close()
