"""The scopes that the routes of this extension need, as app/auth/permissions.py has those of the core."""

from collections.abc import Mapping

from app.auth.permissions import CREATE, DELETE, INFER, READ, WRITE, Access

_INFER = {"POST": INFER}

HTTP_ACCESS: Mapping[str, Mapping[str, Access]] = {
    "/v1/similarity": _INFER,
    "/v1/collections": {"GET": READ, "POST": CREATE},
    "/v1/collections/{collection}": {"GET": READ, "DELETE": DELETE},
    "/v1/collections/{collection}/search": _INFER,
    "/v1/collections/{collection}/upsert": {"POST": WRITE},
    "/v1/collections/{collection}/delete": {"POST": WRITE},
    "/v1/collections/{collection}/records/{rest:path}": {"GET": INFER},
}
