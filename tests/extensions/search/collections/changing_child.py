"""A process that upserts, replaces and deletes records while its index is compacted, until it is killed.

`python -m tests.extensions.search.collections.changing_child FOLDER FIRST`: batch n has the ids "n-0" … "n-6". Before
each change it prints `begin BATCH VERSION`, and after it `done BATCH VERSION`. Version 0 means that the batch
is deleted.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

import numpy as np

from extensions.search.collections.collection import Collection, open_collection
from extensions.search.collections.index import maintenance
from frameworks.core.filters import AnyOf
from frameworks.core.vector_search import Metadata, Record, Vectors
from tests.extensions.search.collections.model import settings_of

DIMENSIONS = 16
BATCH = 7
INDEX_ROWS = 150
_CALLERS = 3


def vector_of(batch: int, version: int, index: int) -> Vectors:
    """Return the vector of one record."""
    return np.random.default_rng([batch, version, index]).standard_normal(DIMENSIONS, dtype=np.float32)


def records_of_batch(batch: int, version: int) -> list[Record]:
    """Return the records of one upsert."""
    metadata: Metadata = {"batch": str(batch), "version": version}
    return [Record(f"{batch}-{i}", vector_of(batch, version, i), "text", metadata) for i in range(BATCH)]


async def _change(collection: Collection, batch: int, version: int) -> None:
    print("begin", batch, version, flush=True)
    if version:
        await collection.upsert(records_of_batch(batch, version))
    elif batch % 2:
        await collection.delete([f"{batch}-{index}" for index in range(BATCH)])
    else:
        await collection.delete(where=AnyOf("batch", (str(batch),)))
    print("done", batch, version, flush=True)


async def _main(folder: Path, first: int) -> None:
    # Every few changes are a reason to rebuild.
    maintenance.MIN_CHANGED_ROWS = 40
    collection = await open_collection(settings_of(folder, DIMENSIONS, index_rows=INDEX_ROWS, index_recall=0.1))
    numbers = count(first)
    print("open", flush=True)

    async def write() -> None:
        for batch in numbers:
            await _change(collection, batch, 1)
            if batch % 4 == 0:
                await _change(collection, batch, 2)
            if batch % 3 == 0:
                await _change(collection, batch, 0)

    await asyncio.gather(*(write() for _ in range(_CALLERS)))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
