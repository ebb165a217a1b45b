"""Similarity and vector collections: a request with texts or vectors in, scores or hits out. Begin with `part.py`.

`protocol/` decodes a request and encodes its answer, `operations/` runs it and opens the collections at the start,
`collections/` stores and searches vectors, `workers/` carries calls of a worker to the supervisor. Manual:
docs/collections.md.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.extension import Extension, ServerProcess

if TYPE_CHECKING:
    from app.admin.extension_part import ExtensionPart
    from app.auth.permissions import Access
    from app.config import LoadedSettings
    from app.config.tables import ConfigTable
    from app.protocols.shared.routes import Route
    from frameworks.core.vector_search import LocalCollections


def _tables() -> "Sequence[ConfigTable]":
    from extensions.search.settings import TABLE

    return (TABLE,)


def _routes() -> "Sequence[Route]":
    from extensions.search.protocol.routes import ROUTES

    return ROUTES


def _open(process: ServerProcess) -> "ExtensionPart":
    from extensions.search.part import SearchPart

    return SearchPart(process)


def _access() -> "Mapping[str, Mapping[str, Access]]":
    from app.auth.permissions import CREATE, DELETE, INFER, READ, WRITE

    return {
        "/v1/similarity": {"POST": INFER},
        "/v1/collections": {"GET": READ, "POST": CREATE},
        "/v1/collections/{collection}": {"GET": READ, "DELETE": DELETE},
        "/v1/collections/{collection}/search": {"POST": INFER},
        "/v1/collections/{collection}/upsert": {"POST": WRITE},
        "/v1/collections/{collection}/delete": {"POST": WRITE},
        "/v1/collections/{collection}/records/{rest:path}": {"GET": INFER},
    }


def _messages() -> tuple[Sequence[type[Any]], Sequence[type[Any]]]:
    from extensions.search.workers.calls import FROM_WORKER, TO_WORKER

    return TO_WORKER, FROM_WORKER


def _local_collections(loaded: "LoadedSettings") -> "LocalCollections":
    from extensions.search.part import OfflineCollections

    return OfflineCollections(loaded)


EXTENSION = Extension(
    tables=_tables,
    routes=_routes,
    open=_open,
    access=_access,
    messages=_messages,
    local_collections=_local_collections,
)
