"""A process that upserts, and says on its standard output which upserts were acknowledged, until it is killed.

`python -m tests.extensions.search.collections.writing_child FOLDER FIRST`: batch n has the ids "n-0" … "n-6".
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

import numpy as np

from extensions.search.collections.collection import open_collection
from frameworks.core.vector_search import Record, Vectors
from tests.extensions.search.collections.model import settings_of

DIMENSIONS = 16
BATCH = 7
_CALLERS = 3


def vector_of(batch: int, index: int) -> Vectors:
    """Return the vector of one record."""
    return np.random.default_rng(batch * BATCH + index).standard_normal(DIMENSIONS, dtype=np.float32)


def records_of_batch(batch: int) -> list[Record]:
    """Return the records of one upsert."""
    return [Record(f"{batch}-{index}", vector_of(batch, index), "text", {"batch": batch}) for index in range(BATCH)]


async def _main(folder: Path, first: int) -> None:
    collection = await open_collection(settings_of(folder, DIMENSIONS))
    numbers = count(first)

    async def write() -> None:
        for batch in numbers:
            await collection.upsert(records_of_batch(batch))
            print(batch, flush=True)

    print("open", flush=True)
    await asyncio.gather(*(write() for _ in range(_CALLERS)))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
