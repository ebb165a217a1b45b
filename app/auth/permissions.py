"""The written table of permissions: the scope that each HTTP route and each gRPC method of the core needs.

An extension has such a table of its routes. On a server with keys a route or method that is in no table is denied to
every key.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from app.auth.principal import Scope
from frameworks.core.names import NAME_IN_PATH

_MAX_CACHED_PATHS = 1024
_MAX_CACHED_CHARACTERS = 256


class Access(NamedTuple):
    """`scope`: of the keys that may call; None: no key is needed. `action`: its name in the audit log."""

    scope: Scope | None
    action: str = ""


EXEMPT = Access(None)
INFER = Access(Scope.INFER)
READ = Access(Scope.READ)
WRITE = Access(Scope.WRITE)
MANAGE = Access(Scope.MANAGE)
REGISTER = Access(Scope.MANAGE, "register")
CREATE = Access(Scope.MANAGE, "create")
LOAD = Access(Scope.MANAGE, "load")
UNLOAD = Access(Scope.MANAGE, "unload")
ROLL_BACK = Access(Scope.MANAGE, "roll_back")
DELETE = Access(Scope.MANAGE, "delete")
# Extensions of Triton that this server answers with 501.
CONFIGURE = Access(Scope.MANAGE, "configure")

_EXTENSION = {"GET": READ, "POST": CONFIGURE}
_GET = {"GET": READ}
_INFER = {"POST": INFER}

HTTP_ACCESS: Mapping[str, Mapping[str, Access]] = {
    "/health/live": {"GET": EXEMPT},
    "/health/ready": {"GET": EXEMPT},
    "/v2/health/live": {"GET": EXEMPT},
    "/v2/health/ready": {"GET": EXEMPT},
    "/": _GET,
    # A browser sends no key with a page. It describes the routes, which are the same everywhere; its calls need a key.
    "/docs": {"GET": EXEMPT},
    "/docs/{file}": {"GET": EXEMPT},
    "/openapi.json": {"GET": EXEMPT},
    "/health": _GET,
    "/metrics": _GET,
    "/events": _GET,
    "/requests": _GET,
    "/folders": {"GET": MANAGE},
    "/models": {"GET": READ, "POST": REGISTER},
    "/models/{name}": {"GET": READ, "DELETE": DELETE},
    "/models/{name}/adapters": {"POST": REGISTER},
    "/models/{name}/adapters/{adapter}": {"DELETE": DELETE},
    "/models/{name}/load": {"POST": LOAD},
    "/models/{name}/unload": {"POST": UNLOAD},
    "/models/{name}/rollback": {"POST": ROLL_BACK},
    "/models/{name}/files": _GET,
    "/models/{name}/files/{rest:path}": _GET,
    "/infer": _INFER,
    "/inference": _INFER,
    "/models/{name}/infer": _INFER,
    "/models/{name}/versions/{version}/infer": _INFER,
    "/v1/models": _GET,
    "/v1/models/{name}:predict": {**_GET, **_INFER},
    "/v1/models/{name}": _GET,
    "/v1/completions": _INFER,
    "/v1/chat/completions": _INFER,
    "/v1/embeddings": _INFER,
    "/v1/audio/transcriptions": _INFER,
    "/v1/audio/translations": _INFER,
    "/v1/rerank": _INFER,
    "/v1/score": _INFER,
    "/v1/tokenize": _INFER,
    "/v1/detokenize": _INFER,
    "/v1/classify": _INFER,
    "/v1/audio/speech": _INFER,
    "/embeddings": _INFER,
    "/rerank": _INFER,
    "/score": _INFER,
    "/classify": _INFER,
    "/tokenize": _INFER,
    "/detokenize": _INFER,
    "/pooling": _INFER,
    "/v2": _GET,
    "/v2/models/stats": _GET,
    "/v2/models/{name}": _GET,
    "/v2/models/{name}/ready": _GET,
    "/v2/models/{name}/config": _GET,
    "/v2/models/{name}/stats": _GET,
    "/v2/models/{name}/versions/{version}": _GET,
    "/v2/models/{name}/versions/{version}/ready": _GET,
    "/v2/models/{name}/versions/{version}/config": _GET,
    "/v2/models/{name}/versions/{version}/stats": _GET,
    "/v2/models/{name}/infer": _INFER,
    "/v2/models/{name}/versions/{version}/infer": _INFER,
    "/v2/models/{name}/generate": _INFER,
    "/v2/models/{name}/versions/{version}/generate": _INFER,
    "/v2/models/{name}/generate_stream": _INFER,
    "/v2/models/{name}/versions/{version}/generate_stream": _INFER,
    "/v2/repository/index": {"POST": READ},
    "/v2/repository/models/{name}/load": {"POST": LOAD},
    "/v2/repository/models/{name}/unload": {"POST": UNLOAD},
    "/v2/systemsharedmemory": _EXTENSION,
    "/v2/systemsharedmemory/{rest:path}": _EXTENSION,
    "/v2/cudasharedmemory": _EXTENSION,
    "/v2/cudasharedmemory/{rest:path}": _EXTENSION,
    "/v2/trace": _EXTENSION,
    "/v2/trace/{rest:path}": _EXTENSION,
    "/v2/logging": _EXTENSION,
    "/v2/logging/{rest:path}": _EXTENSION,
    "/v2/models/{name}/trace": _EXTENSION,
    "/v2/models/{name}/trace/{rest:path}": _EXTENSION,
}
"""Path, as `compile_path` reads it -> method -> access. HEAD is as GET."""

_INFERENCE = "/inference.GRPCInferenceService"

GRPC_ACCESS: Mapping[str, Access] = {
    "/grpc.health.v1.Health/Check": EXEMPT,
    "/grpc.health.v1.Health/Watch": EXEMPT,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": READ,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": READ,
    f"{_INFERENCE}/ServerLive": READ,
    f"{_INFERENCE}/ServerReady": READ,
    f"{_INFERENCE}/ServerMetadata": READ,
    f"{_INFERENCE}/ModelReady": READ,
    f"{_INFERENCE}/ModelMetadata": READ,
    f"{_INFERENCE}/ModelConfig": READ,
    f"{_INFERENCE}/ModelStatistics": READ,
    f"{_INFERENCE}/RepositoryIndex": READ,
    f"{_INFERENCE}/RepositoryModelLoad": LOAD,
    f"{_INFERENCE}/RepositoryModelUnload": UNLOAD,
    f"{_INFERENCE}/ModelInfer": INFER,
    f"{_INFERENCE}/ModelStreamInfer": INFER,
    "/inference.InferenceService/Predict": INFER,
}
"""Full method name -> access."""

_FIELD = re.compile(r"\{(\w+)(:path)?\}")


def compile_path(path: str) -> re.Pattern[str]:
    """Return the pattern of the decoded paths of a route, with a group for each field.

    `{name}` is the name of a model, `name` or `org/name`; `{rest:path}` is all that follows, or nothing; another field
    is one part.
    """
    pattern, end = "", 0
    for field in _FIELD.finditer(path):
        expected = NAME_IN_PATH if field[1] == "name" else ".*" if field[2] else "[^/]+"
        pattern += f"{re.escape(path[end : field.start()])}(?P<{field[1]}>{expected})"
        end = field.end()
    return re.compile(pattern + re.escape(path[end:]), re.DOTALL)


class MatchedPath(NamedTuple):
    """The entry of a path. `model`: the name of a model in the path; "" without one."""

    methods: Mapping[str, Access]
    model: str

    def action_of(self, method: str) -> str:
        """Return the action of a request for the audit log; "" for one that changes no model."""
        access = self.methods.get(method)
        return "" if access is None else access.action


class HttpAccess:
    """Find the entries of a table such as HTTP_ACCESS."""

    def __init__(self, table: Mapping[str, Mapping[str, Access]] = HTTP_ACCESS) -> None:
        self.table = table
        entries = {path: _with_head(methods) for path, methods in table.items()}
        self._exact = {path: MatchedPath(methods, "") for path, methods in entries.items() if "{" not in path}
        self._patterns = [(compile_path(path), methods) for path, methods in entries.items() if "{" in path]
        self._find_cached = lru_cache(maxsize=_MAX_CACHED_PATHS)(self._find)

    def find(self, path: str) -> MatchedPath | None:
        """Return the entry of a decoded path, as the routers read it: one slash at its end is ignored."""
        # Paths are the caller's: the cache keeps short ones only.
        return self._find_cached(path) if len(path) <= _MAX_CACHED_CHARACTERS else self._find(path)

    def _find(self, path: str) -> MatchedPath | None:
        path = path.removesuffix("/") or path
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return MatchedPath(methods, match.groupdict().get("name", ""))
        return None


def _with_head(methods: Mapping[str, Access]) -> Mapping[str, Access]:
    return {**methods, "HEAD": methods["GET"]} if "GET" in methods else methods
