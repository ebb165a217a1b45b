"""Keep the index of a collection in a file, so that the next open need not compute it.

A row number never changes its vector: what the file says of a row stays right, and newer rows are assigned when it is
read.
"""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from frameworks.collections.contract import Vectors
from frameworks.collections.index.kmeans import Labels
from frameworks.collections.store.sqlite_store import Rows

log = structlog.get_logger(__name__)

FILE = "index.npz"


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """Centres float32 [lists, d], and the list of each row: `rows` int64 [n], rising, `labels` int32 [n].

    `trained_rows`: how many rows there were when the centres were computed.
    """

    centres: Vectors
    rows: Rows
    labels: Labels
    trained_rows: int


def save(folder: Path, index: KeptIndex) -> None:
    """Write the file as a whole, or raise OSError and leave the former one."""
    made = folder / f"{FILE}.new"
    try:
        with made.open("wb") as file:
            np.savez(file, centres=index.centres, rows=index.rows, labels=index.labels, trained_rows=index.trained_rows)
            file.flush()
            os.fsync(file.fileno())
        made.replace(folder / FILE)
    finally:
        made.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Return the bytes of the file, which is no smaller than the index in memory; 0 without one."""
    try:
        return (folder / FILE).stat().st_size
    except FileNotFoundError:
        return 0


def load(folder: Path, dimensions: int) -> KeptIndex | None:
    """Return what the file holds; None where there is none, or a damaged one."""
    try:
        with np.load(folder / FILE, allow_pickle=False) as found:
            index = KeptIndex(found["centres"], found["rows"], found["labels"], int(found["trained_rows"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("the index of a collection cannot be read; it is built again", error=str(error))
        return None
    is_whole = index.centres.ndim == 2 and index.centres.shape[1] == dimensions and len(index.rows) == len(index.labels)
    if not is_whole or (len(index.labels) and not 0 <= index.labels.min() <= index.labels.max() < len(index.centres)):
        log.warning("the index of a collection does not match it; it is built again")
        return None
    return index
