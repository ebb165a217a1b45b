"""Save the IVF index of a collection in a file, so that the next open need not run k-means again.

The vector of a row number never changes, so the saved list of a row stays right. Newer rows are assigned to lists when
the file is read.
"""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from extensions.search.collections.index.kmeans import Labels
from extensions.search.collections.store.sqlite_store import Rows
from frameworks.core.vector_search import Vectors

log = structlog.get_logger(__name__)

FILE = "index.npz"


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """`centroids` float32 [lists, d]; `rows` int64 [n], ascending row numbers; `labels` int32 [n], their lists.

    `trained_rows`: number of rows when the centroids were trained.
    """

    centroids: Vectors
    rows: Rows
    labels: Labels
    trained_rows: int


def save(folder: Path, index: SavedIndex) -> None:
    """Write the file as a whole, or raise OSError and leave the former one."""
    made = folder / f"{FILE}.new"
    try:
        with made.open("wb") as file:
            np.savez(
                file, centres=index.centroids, rows=index.rows, labels=index.labels, trained_rows=index.trained_rows
            )
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


def load(folder: Path, dimensions: int) -> SavedIndex | None:
    """Return what the file holds; None where there is none, or a damaged one."""
    try:
        with np.load(folder / FILE, allow_pickle=False) as found:
            index = SavedIndex(found["centres"], found["rows"], found["labels"], int(found["trained_rows"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("the index of a collection cannot be read; it is built again", error=str(error))
        return None
    is_whole = (
        index.centroids.ndim == 2 and index.centroids.shape[1] == dimensions and len(index.rows) == len(index.labels)
    )
    if not is_whole or (len(index.labels) and not 0 <= index.labels.min() <= index.labels.max() < len(index.centroids)):
        log.warning("the index of a collection does not match it; it is built again")
        return None
    return index
