"""Store the records of a collection in SQLite, with a write-ahead log (WAL) that is synced at each commit.

One thread writes. The vector of a row number never changes: a replaced record gets a new row number.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from filelock import FileLock, Timeout

from extensions.search.collections.contract import (
    CollectionFailed,
    CollectionInUse,
    CollectionSettings,
    InvalidCollection,
    StorageFull,
)
from frameworks.core.vector_search import Metadata, Vectors

FORMAT = "1"
FILE = "records.sqlite"
LOAD_ROWS = 4096
_IN_ONE_QUERY = 500
_PAGE_BYTES = 16_384
"""Page size of the file: most vectors fit in one page, and little of a page stays empty."""
_SCHEMA = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, text TEXT, metadata BLOB NOT NULL);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
"""

T = TypeVar("T")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record but its vector. `metadata`: as JSON."""

    row: int
    id: str
    text: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    """Some records as they are read at the open: row numbers [n], vectors float32 [n, d], metadata."""

    rows: Rows
    vectors: Vectors
    metadata: list[Metadata]


@contextmanager
def disk_errors(name: str) -> Iterator[None]:
    """Raise the errors of SQLite as those of the collection `name`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise StorageFull(
                f'collection "{name}": expected room on the disk, got a full one; nothing was written; make room'
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise InvalidCollection(f'collection "{name}": its file is damaged; restore its folder') from error
        raise CollectionFailed(f'collection "{name}": the disk failed ({error}); nothing was written') from error


class Reader:
    """A connection that reads. Used by one thread at a time."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def begin(self) -> None:
        """See the records as they are now until `end`."""
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM settings LIMIT 1").fetchone()

    def end(self) -> None:
        """End what `begin` began."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def by_rows(self, rows: Sequence[int]) -> dict[int, StoredRecord]:
        """Return the records of these row numbers."""
        return {record.row: record for record in self._records("row", rows)}

    def by_ids(self, ids: Sequence[str]) -> dict[str, StoredRecord]:
        """Return the records of these ids."""
        return {record.id: record for record in self._records("id", ids)}

    def _records(self, column: Literal["row", "id"], values: Sequence[int] | Sequence[str]) -> Iterator[StoredRecord]:
        for marks, part in _parts(values):
            query = f"SELECT row, id, text, metadata FROM records WHERE {column} IN ({marks})"  # noqa: S608 - only "?"
            yield from (StoredRecord(*record) for record in self._connection.execute(query, part))

    def vectors(self, rows: Sequence[int]) -> dict[int, Vectors]:
        """Return the vectors of these row numbers, float32 [d], as they were upserted."""
        found: dict[int, Vectors] = {}
        for marks, part in _parts(rows):
            query = f"SELECT row, vector FROM vectors WHERE row IN ({marks})"  # noqa: S608 - only "?"
            found.update(
                (row, np.frombuffer(vector, dtype=np.float32)) for row, vector in self._connection.execute(query, part)
            )
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Store:
    """The files of a collection, open for writing. Construct and use it on one thread at a time."""

    def __init__(self, settings: CollectionSettings) -> None:
        """Open the files, or create them. Raises CollectionInUse, InvalidCollection, CollectionFailed, StorageFull."""
        self._settings = settings
        self.file = settings.folder / FILE
        self._lock = _locked(settings)
        try:
            with disk_errors(settings.name):
                _create_or_check(settings.name, self.file)
                self._connection = _connected(self.file)
                _sync_folder(settings.folder)
                self._check()
                found = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
                self._next_row = int(found[0]) + 1 if found else 1
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Compare the settings with those that the file was made with."""
        wanted = {"format": FORMAT, "dimensions": str(self._settings.dimensions), "metric": self._settings.metric.value}
        if dict(self._connection.execute("SELECT key, value FROM settings")) == {}:
            self._connection.executemany("INSERT INTO settings VALUES (?, ?)", wanted.items())
        made = dict(self._connection.execute("SELECT key, value FROM settings"))
        for key, value in wanted.items():
            if made.get(key) != value:
                raise InvalidCollection(
                    f'collection "{self._settings.name}": expected {key} {made.get(key)}, with which its files were '
                    f"made, got {value}; set the former, or choose another folder"
                )

    def count(self) -> int:
        """Return the number of records."""
        with disk_errors(self._settings.name):
            return int(self._connection.execute("SELECT COUNT(*) FROM vectors").fetchone()[0])

    def load(self) -> Iterator[Loaded]:
        """Yield all records, by rising row numbers."""
        size = 4 * self._settings.dimensions
        query = "SELECT row, vector, metadata FROM records LEFT JOIN vectors USING (row) ORDER BY row"
        with disk_errors(self._settings.name):
            cursor = self._connection.execute(query)
            while records := cursor.fetchmany(LOAD_ROWS):
                rows, vectors, metadata = zip(*records, strict=True)
                if any(vector is None or len(vector) != size for vector in vectors):
                    raise InvalidCollection(
                        f'collection "{self._settings.name}": a vector is damaged; restore its folder'
                    )
                array = np.frombuffer(b"".join(vectors), dtype=np.float32).reshape(len(rows), -1)
                yield Loaded(np.array(rows, dtype=np.int64), array, [orjson.loads(each) for each in metadata])

    def begin(self) -> None:
        """Begin a transaction."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit; when it returns, the changes are on the disk."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, if there still is one."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def upsert(
        self, ids: Sequence[str], vectors: Vectors, texts: Sequence[str | None], metadata: Sequence[bytes]
    ) -> tuple[Rows, list[int]]:
        """Write records; return their row numbers [n], and those of the records that they replace."""
        replaced = self._rows_of(ids)
        self.delete(replaced)
        rows = range(self._next_row, self._next_row + len(ids))
        self._next_row += len(ids)
        self._connection.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?)", zip(rows, ids, texts, metadata, strict=True)
        )
        blobs = np.ascontiguousarray(vectors).data.cast("B")
        size = 4 * self._settings.dimensions
        self._connection.executemany(
            "INSERT INTO vectors VALUES (?, ?)",
            ((row, blobs[index * size : (index + 1) * size]) for index, row in enumerate(rows)),
        )
        return np.arange(rows.start, rows.stop, dtype=np.int64), replaced

    def delete_ids(self, ids: Sequence[str]) -> list[int]:
        """Delete records by their ids; return the row numbers that they had."""
        rows = self._rows_of(ids)
        self.delete(rows)
        return rows

    def delete(self, rows: Iterable[int]) -> None:
        """Delete records by their row numbers."""
        keys = [(int(row),) for row in rows]
        self._connection.executemany("DELETE FROM records WHERE row = ?", keys)
        self._connection.executemany("DELETE FROM vectors WHERE row = ?", keys)

    def _rows_of(self, ids: Sequence[str]) -> list[int]:
        rows: list[int] = []
        for marks, part in _parts(ids):
            query = f"SELECT row FROM records WHERE id IN ({marks})"  # noqa: S608 - only "?"
            rows += [row for (row,) in self._connection.execute(query, part)]
        return rows

    def disk_bytes(self) -> int:
        """Return the bytes of all files of the collection."""
        total = 0
        for each in self._settings.folder.iterdir():
            with suppress(FileNotFoundError):  # a file of SQLite or of the index may vanish
                total += each.stat().st_size
        return total

    def close(self) -> None:
        """Close the file and release the lock."""
        if hasattr(self, "_connection"):
            self._connection.close()
        self._lock.release()


def _locked(settings: CollectionSettings) -> FileLock:
    try:
        _make_folder(settings.folder)
        lock = FileLock(settings.folder / "lock", timeout=0, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise CollectionInUse(
            f'collection "{settings.name}": expected its folder to be free, got one that another process has open; '
            "a collection has one server process"
        ) from error
    except OSError as error:
        raise CollectionFailed(
            f'collection "{settings.name}": its folder cannot be written ({error.strerror}); choose another'
        ) from error
    return lock


def _make_folder(folder: Path) -> None:
    """Create the folder and those above it, durably: a file is lost with the name of its folder."""
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_or_check(name: str, file: Path) -> None:
    """Create the file of a new collection. Raises InvalidCollection for a file that lost its content.

    A new file gets its name with its tables in it. So an empty file, in which SQLite would begin again, and a log
    without its file are what is left of records.
    """
    if file.exists():
        is_damaged = not file.stat().st_size
    else:
        log = file.with_name(f"{FILE}-wal")
        is_damaged = log.exists() and log.stat().st_size > 0
    if is_damaged:
        raise InvalidCollection(f'collection "{name}": its file is damaged; restore its folder')
    if not file.exists():
        new = file.with_suffix(".new")
        for left in (new, file.with_suffix(".new-journal")):
            left.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.executescript(_SCHEMA)
        new.replace(file)


def _connected(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _parts(values: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """Yield parts of the values that fit one query, each with its "?, ?, …"."""
    for start in range(0, len(values), _IN_ONE_QUERY):
        part = values[start : start + _IN_ONE_QUERY]
        yield ", ".join("?" * len(part)), part
