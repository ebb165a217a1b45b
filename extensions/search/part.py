"""Collections and similarity in one process of a server: operations, routes, metrics, start and stop."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter

from app.admin.extension_part import ExtensionPart, ServerParts
from app.admin.metrics.families import Family
from app.admin.views import View
from app.auth.principal import Principal
from app.extension import ServerProcess
from extensions.search.api import CollectionsApi
from extensions.search.metrics import collection_families
from extensions.search.operations.collections import Collections, ConfiguredCollection
from extensions.search.operations.files import CollectionFiles
from extensions.search.operations.operations import CollectionOperations, Deletes, Searches, Upserts
from extensions.search.operations.requests import DeleteRequest, SearchRequest, UpsertRequest
from extensions.search.operations.similarity import Similarities, SimilarityRequest
from extensions.search.settings import COLLECTIONS_FOLDER, entries_of
from frameworks.core.vector_search import NamedCollections


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
            from extensions.search.workers.collections import RemoteCollections
            from extensions.search.workers.created import CreatedReceiver

            collections.connect(RemoteCollections(process.link).connect)
            CreatedReceiver(process.link, collections)
        elif process.workers is not None:
            from extensions.search.workers.collections import CollectionServer
            from extensions.search.workers.created import CreatedSender

            self._created = CreatedSender(process.workers, collections)  # a worker has them before its models
            process.workers.on_connect(CollectionServer(collections).serve)

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._collections.running()

    def routers(self, parts: ServerParts) -> Sequence[APIRouter]:
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
