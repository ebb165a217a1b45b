"""Collections and similarity in one process of a server: operations, routes, metrics, start and stop."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from app.admin.extension_part import ExtensionPart, ServerParts
from app.admin.metrics.families import Family, by_label, by_tenant, counter, gauge, time_histogram
from app.admin.views import View
from app.auth.principal import Principal
from app.config import LoadedSettings
from app.extension import ServerProcess
from app.observability.visible_counts import Counts
from extensions.search.collections.contract import CollectionInfo
from extensions.search.operations.collections import Collections, ConfiguredCollection
from extensions.search.operations.files import CollectionFiles
from extensions.search.operations.operations import CollectionOperations, Deletes, Searches, Upserts
from extensions.search.operations.requests import DeleteRequest, SearchRequest, UpsertRequest
from extensions.search.operations.similarity import Similarities, SimilarityRequest
from extensions.search.settings import COLLECTIONS_FOLDER, entries_of
from frameworks.core.vector_search import NamedCollections, WritableCollection

if TYPE_CHECKING:
    from fastapi import APIRouter


class SearchPart(ExtensionPart):
    """The collections of one process. A single server and a supervisor have them open, a worker asks its supervisor."""

    health_key = "collections"
    health_description = "opening, ready or failed; only where there are any."

    def __init__(self, process: ServerProcess) -> None:
        """Register the operations, and the handlers of messages between the processes of the server."""
        loaded, pipeline = process.loaded, process.pipeline
        is_owner = process.link is None
        files = CollectionFiles(loaded.resolve(COLLECTIONS_FOLDER)) if is_owner and process.keeps_files else None
        configured = (ConfiguredCollection(each, loaded.resolve(each.folder)) for each in entries_of(loaded.settings))
        self._collections = collections = Collections(configured, process.ledger, files)
        process.offers[NamedCollections] = collections
        pipeline.lifecycle.on_drain(collections.stop_opening)
        pipeline.resources["collection"] = collections.check
        operations = CollectionOperations(collections, process.models)
        pipeline.operations[SearchRequest] = Searches(operations)
        pipeline.operations[UpsertRequest] = Upserts(operations)
        pipeline.operations[DeleteRequest] = Deletes(operations)
        similarities = pipeline.operations[SimilarityRequest] = Similarities(process.models)
        pipeline.at_close(similarities.close)
        self._created = None
        if process.link is not None:
            from extensions.search.workers.collections import CreatedReceiver, RemoteCollections

            collections.connect(RemoteCollections(process.link).connect)
            CreatedReceiver(process.link, collections)
        elif process.workers is not None:
            from extensions.search.workers.collections import CollectionServer, CreatedSender

            self._created = CreatedSender(process.workers, collections)  # a worker has them before its models
            process.workers.on_connect(CollectionServer(collections).serve)

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._collections.running()

    def routers(self, parts: ServerParts) -> "Sequence[APIRouter]":
        from extensions.search.api import CollectionsApi

        max_body_bytes = parts.settings.server.max_body_bytes
        return (CollectionsApi(self._collections, parts.views, parts.lifecycle, max_body_bytes).router(),)

    def states(self, principal: Principal) -> dict[str, str]:
        return self._collections.states(principal)

    async def families(self, view: View) -> Iterable[Family]:
        infos = await self._collections.infos(view.models.principal)
        return collection_families(infos, view.counts)

    async def applied(self) -> None:
        if self._created is not None:
            await self._created.applied()


def collection_families(infos: Sequence[CollectionInfo], counts: Counts) -> Iterator[Family]:
    """Yield the families of the collections that a principal may see, and of its requests to them."""
    visible = {info.name for info in infos}
    yield counter(
        "collection_requests",
        "Completed requests to collections, by operation (search, upsert, delete) and HTTP status.",
        *by_tenant(
            ["collection", "operation", "code"],
            (
                ([name, operation, str(status)], tenant, count)
                for (name, operation, status, tenant), count in counts.operations()
                if name in visible
            ),
        ),
    )
    yield time_histogram(
        "collection_seconds",
        "Time of successful requests to collections, from the first byte to the response.",
        ["collection", "operation"],
        ((list(key), histogram) for key, histogram in counts.operation_seconds().items() if key[0] in visible),
    )
    yield by_label(gauge, "collection_rows", "Records of a collection.", "collection", _each(infos, "rows"))
    yield gauge(
        "collection_bytes",
        "Size of a collection: its vectors, filter columns and index in memory, and its files.",
        ["collection", "kind"],
        [
            ([info.name, kind], size)
            for info in infos
            for kind, size in (("memory", info.memory_bytes), ("disk", info.disk_bytes))
        ],
    )
    if counts.tenant is None:
        for kind, name, documentation, field in (
            (counter, "queries", "Queries that were searched for.", "searches"),
            (counter, "batches", "GEMMs of a collection; queries that wait together share one.", "batches"),
            (gauge, "waiting", "Queries that wait for a search.", "waiting"),
        ):
            yield by_label(kind, f"collection_{name}", documentation, "collection", _each(infos, field))


def _each(infos: Sequence[CollectionInfo], field: str) -> list[tuple[str, float]]:
    return [(info.name, getattr(info, field)) for info in infos]


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
        from extensions.search.collections.collection import open_collection  # numba's import takes seconds

        entry = self._entries[name]
        return await open_collection(entry.at(self._loaded.resolve(entry.folder)))
