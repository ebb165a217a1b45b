"""Open collections of the settings in a process without a server."""

from app.config import LoadedSettings
from extensions.search.collections.collection import open_collection
from extensions.search.settings import entries_of
from frameworks.core.vector_search import WritableCollection


class OfflineCollections:
    """Implements LocalCollections."""

    def __init__(self, loaded: LoadedSettings) -> None:
        self._loaded = loaded
        self._entries = {each.name: each for each in entries_of(loaded.settings)}

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    async def open(self, name: str) -> WritableCollection:
        """Raises CollectionInUse if a server has it open, and what `open_collection` raises."""
        entry = self._entries[name]
        return await open_collection(entry.at(self._loaded.resolve(entry.folder)))
