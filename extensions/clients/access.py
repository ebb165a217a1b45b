"""The scopes that the routes of this extension need, as app/auth/permissions.py has those of the core."""

from collections.abc import Mapping

from app.auth.permissions import INFER, READ, Access

_GET = {"GET": READ}
_INFER = {"POST": INFER}

HTTP_ACCESS: Mapping[str, Mapping[str, Access]] = {
    "/": _INFER,
    "/api/tags": _GET,
    "/api/ps": _GET,
    "/api/version": _GET,
    "/api/show": {"POST": READ},
    "/api/chat": _INFER,
    "/api/generate": _INFER,
    "/api/embed": _INFER,
    "/api/embeddings": _INFER,
    "/v1/responses": _INFER,
    "/v1/responses/input_tokens": _INFER,
    "/v1/messages": _INFER,
    "/v1/messages/count_tokens": _INFER,
    "/embed": _INFER,
    "/predict": _INFER,
    "/similarity": _INFER,
    "/generate": _INFER,
    "/generate_stream": _INFER,
    "/info": _GET,
    "/v2/embed": _INFER,
    "/v2/rerank": _INFER,
}
