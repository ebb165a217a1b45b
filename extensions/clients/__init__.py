"""APIs beside the core's, for their clients: Anthropic, Cohere, Ollama, OpenAI Responses, TEI, TGI; a folder each.

A request is decoded by the codec of its route (`routes.py` of the folder) into a request of `app/inference`, which runs
it as any other; the same codec writes the answer. Codecs take their common parts from `app/protocols`.
Manual: docs/responses-api.md, docs/messages-api.md, docs/ollama.md, docs/text-clients.md.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.extension import Extension, ServerProcess

if TYPE_CHECKING:
    from app.admin.extension_part import ExtensionPart
    from app.auth.permissions import Access
    from app.protocols.shared.routes import Route

_INFERENCE_PATHS = (
    *("/", "/models/{name}", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    *("/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens"),
    *("/embed", "/embed_sparse", "/predict", "/similarity", "/generate", "/generate_stream"),
    *("/v2/embed", "/v2/rerank"),
)


def _routes() -> "Sequence[Route]":
    from extensions.clients.anthropic.routes import ROUTES as ANTHROPIC_ROUTES
    from extensions.clients.cohere.routes import ROUTES as COHERE_ROUTES
    from extensions.clients.hugging_face.routes import hub_routes
    from extensions.clients.ollama.routes import ROUTES as OLLAMA_ROUTES
    from extensions.clients.responses.routes import ROUTES as RESPONSES_ROUTES
    from extensions.clients.tei.routes import ROUTES as TEI_ROUTES
    from extensions.clients.tgi.root import ROOT_CODEC
    from extensions.clients.tgi.routes import ROUTES as TGI_ROUTES

    # A body of TGI on a path of TEI has a field that TEI's bodies have not: TEI's routes are the first of a path.
    roots = [route for route in TGI_ROUTES if route.path == "/"]
    other_routes = [route for route in TGI_ROUTES if route.path != "/"]
    text_routes = (*TEI_ROUTES, *hub_routes(ROOT_CODEC, roots), *other_routes)
    return (*RESPONSES_ROUTES, *ANTHROPIC_ROUTES, *COHERE_ROUTES, *text_routes, *OLLAMA_ROUTES)


def _open(_: ServerProcess) -> "ExtensionPart":
    from extensions.clients.part import ClientsPart

    return ClientsPart()


def _access() -> "Mapping[str, Mapping[str, Access]]":
    from app.auth.permissions import INFER, READ

    return {
        **{path: {"GET": READ} for path in ("/api/tags", "/api/ps", "/api/version")},
        "/api/show": {"POST": READ},
        "/info": {"GET": READ},
        **{path: {"POST": INFER} for path in _INFERENCE_PATHS},
    }


EXTENSION = Extension(routes=_routes, open=_open, access=_access)
