"""Define collections of vectors as other parts use them: steps of composite models, and `roundhouse run`.

`extensions/search` implements them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from frameworks.core.filters import Filter

Vectors = npt.NDArray[np.float32]
MetadataValue = str | int | float | bool | None | list[str]
Metadata = dict[str, MetadataValue]
"""Values by key. A filter treats None as an absent key. Numbers are compared as float64."""

MAX_TOP_K = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a collection. `vector`: float32 [dimensions], as it was upserted; None where it was not asked."""

    id: str
    vector: Vectors | None = None
    text: str | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that a search found, and its score. `vector`: as it was upserted; None where it was not asked."""

    id: str
    score: float
    text: str | None
    metadata: Metadata
    vector: Vectors | None = None


class Searchable(Protocol):
    """A collection that this process or another one of the server has open. Owned by the event loop."""

    async def search(
        self,
        vectors: Vectors,
        top_k: int,
        *,
        where: Filter | None = None,
        include_vectors: bool = False,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return up to `top_k` hits for each row of `vectors` (float32 [n, dimensions]), the best first.

        Equal scores are ordered by age, the oldest record first. `exact`: do not use the index. The search sees every
        upsert that was acknowledged before it was called. Raises InvalidInput (`top_k`, `vector`), Draining, Overloaded
        and ModelFailed.
        """


class NamedCollections(Protocol):
    """The collections of the server by name, for steps of composite models. The configuration permits them."""

    @property
    def dimensions(self) -> Mapping[str, int]:
        """Collection → dimensions of its vectors. All configured collections, open or not."""

    def opened(self, name: str) -> Searchable:
        """Return an open collection. Raises ModelFailed and ModelLoading for one that is not open."""


class WritableCollection(Protocol):
    """A collection that this process has open."""

    async def upsert(self, records: Sequence[Record]) -> int:
        """Insert records, or replace those of the same ids as a whole; return how many. Durable when it returns.

        Raises InvalidInput, OutOfMemory and ModelFailed.
        """

    async def close(self) -> None:
        """Answer the calls that wait, and close the files."""


class LocalCollections(Protocol):
    """The collections of a configuration, for a process without a server."""

    @property
    def names(self) -> Sequence[str]: ...

    async def open(self, name: str) -> WritableCollection:
        """Open one of `names`, which no other process may have open. Raises ModelFailed and InvalidModel."""
        ...
