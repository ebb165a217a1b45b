"""Every HTTP route and every gRPC method of a server with keys, compared with a table written here."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from app.auth.principal import Scope
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.models import onnx_graphs

HTTP = {
    "GET /": "read",
    "POST /": "infer",
    "GET /info": "read",
    "GET /docs": "none",
    "GET /api/tags": "read",
    "GET /api/ps": "read",
    "GET /api/version": "read",
    "POST /api/show": "read",
    "POST /api/chat": "infer",
    "POST /api/generate": "infer",
    "POST /api/embed": "infer",
    "POST /api/embeddings": "infer",
    "GET /health": "read",
    "GET /health/live": "none",
    "GET /health/ready": "none",
    "GET /metrics": "read",
    "GET /events": "read",
    "GET /requests": "read",
    "GET /folders": "manage",
    "GET /models/{name}/files": "read",
    "GET /models/{name}/files/{rest}": "read",
    "GET /models": "read",
    "POST /models": "manage",
    "GET /models/{name}": "read",
    "POST /models/{name}": "infer",
    "DELETE /models/{name}": "manage",
    "POST /models/{name}/load": "manage",
    "POST /models/{name}/unload": "manage",
    "POST /models/{name}/rollback": "manage",
    "POST /models/{name}/adapters": "manage",
    "DELETE /models/{name}/adapters/{adapter}": "manage",
    "POST /infer": "infer",
    "POST /inference": "infer",
    "POST /models/{name}/infer": "infer",
    "POST /models/{name}/versions/{version}/infer": "infer",
    "GET /v1/models": "read",
    "GET /v1/models/{name}": "read",
    "POST /v1/models/{name}:predict": "infer",
    "POST /v1/completions": "infer",
    "POST /v1/chat/completions": "infer",
    "POST /v1/responses": "infer",
    "POST /v1/responses/input_tokens": "infer",
    "POST /v1/messages": "infer",
    "POST /v1/messages/count_tokens": "infer",
    "POST /v1/embeddings": "infer",
    "POST /v1/audio/transcriptions": "infer",
    "POST /v1/audio/translations": "infer",
    "POST /v1/rerank": "infer",
    "POST /v1/score": "infer",
    "POST /v1/tokenize": "infer",
    "POST /v1/detokenize": "infer",
    "POST /v1/classify": "infer",
    "POST /v1/audio/speech": "infer",
    "POST /v1/similarity": "infer",
    "GET /v1/collections": "read",
    "GET /v1/collections/{collection}": "read",
    "POST /v1/collections": "manage",
    "DELETE /v1/collections/{collection}": "manage",
    "POST /v1/collections/{collection}/search": "infer",
    "POST /v1/collections/{collection}/upsert": "write",
    "POST /v1/collections/{collection}/delete": "write",
    "GET /v1/collections/{collection}/records/{rest}": "infer",
    "POST /embeddings": "infer",
    "POST /rerank": "infer",
    "POST /score": "infer",
    "POST /classify": "infer",
    "POST /tokenize": "infer",
    "POST /detokenize": "infer",
    "POST /pooling": "infer",
    "POST /embed": "infer",
    "POST /embed_sparse": "infer",
    "POST /predict": "infer",
    "POST /similarity": "infer",
    "POST /generate": "infer",
    "POST /generate_stream": "infer",
    "POST /v2/embed": "infer",
    "POST /v2/rerank": "infer",
    "GET /v2": "read",
    "GET /v2/health/live": "none",
    "GET /v2/health/ready": "none",
    "GET /v2/models/stats": "read",
    "GET /v2/models/{name}": "read",
    "GET /v2/models/{name}/ready": "read",
    "GET /v2/models/{name}/config": "read",
    "GET /v2/models/{name}/stats": "read",
    "GET /v2/models/{name}/versions/{version}": "read",
    "GET /v2/models/{name}/versions/{version}/ready": "read",
    "GET /v2/models/{name}/versions/{version}/config": "read",
    "GET /v2/models/{name}/versions/{version}/stats": "read",
    "POST /v2/models/{name}/infer": "infer",
    "POST /v2/models/{name}/versions/{version}/infer": "infer",
    "POST /v2/models/{name}/generate": "infer",
    "POST /v2/models/{name}/versions/{version}/generate": "infer",
    "POST /v2/models/{name}/generate_stream": "infer",
    "POST /v2/models/{name}/versions/{version}/generate_stream": "infer",
    "POST /v2/repository/index": "read",
    "POST /v2/repository/models/{name}/load": "manage",
    "POST /v2/repository/models/{name}/unload": "manage",
}
"""The routes of the OpenAPI document and the scope of each; `none`: no key is needed."""

HIDDEN = {
    "GET /openapi.json": "none",
    "GET /docs/swagger-ui.css": "none",
    "GET /v2/systemsharedmemory/status": "read",
    "POST /v2/cudasharedmemory/region/a/register": "manage",
    "GET /v2/trace": "read",
    "POST /v2/trace/setting": "manage",
    "GET /v2/logging": "read",
    "POST /v2/logging": "manage",
    "POST /v2/models/{name}/trace/setting": "manage",
}
"""Routes that the document leaves out."""

SERVICE = "inference.GRPCInferenceService"
GRPC = {
    "grpc.health.v1.Health/Check": "none",
    "grpc.health.v1.Health/Watch": "none",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "read",
    f"{SERVICE}/ServerLive": "read",
    f"{SERVICE}/ServerReady": "read",
    f"{SERVICE}/ServerMetadata": "read",
    f"{SERVICE}/ModelReady": "read",
    f"{SERVICE}/ModelMetadata": "read",
    f"{SERVICE}/ModelConfig": "read",
    f"{SERVICE}/ModelStatistics": "read",
    f"{SERVICE}/RepositoryIndex": "read",
    f"{SERVICE}/RepositoryModelLoad": "manage",
    f"{SERVICE}/RepositoryModelUnload": "manage",
    f"{SERVICE}/ModelInfer": "infer",
    f"{SERVICE}/ModelStreamInfer": "infer",
    "inference.InferenceService/Predict": "infer",
}
"""The methods that reflection lists, and the scope of each."""

FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
OPENAI_BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "a"},
    "chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "responses": {"input": "a"},
    "embeddings": {"input": "a"},
    "rerank": {"query": "a", "documents": ["a"]},
    "score": {"text_1": "a", "text_2": "a"},
    "tokenize": {"prompt": "a"},
    "detokenize": {"tokens": [1]},
    "similarity": {"items": ["a"]},
}

HIDDEN_GRPC = {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "read"}

KEYS = {scope: make_key("search", scope) for scope in Scope}
FOREIGN = make_key("chat")
EVERY = make_key("search")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two tenants, whose only model and collection are of the first."""
    folder = tmp_path_factory.mktemp("keyed")
    write_keys(folder / "keys.toml", *KEYS.values(), FOREIGN, EVERY)
    config = onnx_entries(folder, {"vector": onnx_graphs.identity("float32", None)})
    config += '[logging]\nrequests = "all"\n[auth]\nmode = "required"\n'
    config += '[[auth.tenants]]\nname = "search"\n[[auth.tenants]]\nname = "chat"\nmodels = ["chat*"]\n'
    config += 'collections = ["chat*"]\n[[collections]]\nname = "notes"\ndimensions = 2\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        yield server.wait_ready()
        server.check_log()


def send(server: RunningServer, route: str, key: MadeKey | None) -> int:
    """Send a request with an empty body. No model is named `absent`, so that allowed requests change nothing."""
    method, path = route.split()
    path = path.format(name="absent", version="1", adapter="a", rest="a", collection="absent")
    with server.client.stream(method, path, headers={} if key is None else key.headers) as response:
        return response.status_code  # the response of GET /events never ends


def call(server: RunningServer, method: str, key: MadeKey | None) -> str:
    """Send one empty message; return the name of the status."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        metadata = () if key is None else key.metadata
        try:
            send_all: Any = channel.stream_stream(f"/{method}")
            responses = send_all(iter([b""]), metadata=metadata, timeout=60)
            next(responses, None)
            responses.cancel()
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code.name
    return "OK"


def listed_methods(server: RunningServer) -> set[str]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as plain:
        channel = grpc.intercept_channel(plain, WithKey(KEYS[Scope.READ]))
        reflection = ProtoReflectionDescriptorDatabase(channel)
        found = set()
        for service in reflection.get_services():
            (descriptor,) = [
                each
                for each in reflection.FindFileContainingSymbol(service).service
                if service.endswith(f".{each.name}")
            ]
            found |= {f"{service}/{method.name}" for method in descriptor.method}
        return found


class WithKey(grpc.StreamStreamClientInterceptor):
    """Send a key with each call."""

    def __init__(self, key: MadeKey) -> None:
        self._key = key

    def intercept_stream_stream(self, continuation, call_details, request_iterator):  # type: ignore[no-untyped-def]
        return continuation(call_details._replace(metadata=self._key.metadata), request_iterator)


def test_openapi_routes_equal_the_table(keyed: RunningServer) -> None:
    document = keyed.client.get("/openapi.json", headers=KEYS[Scope.READ].headers).json()
    listed = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert listed == HTTP.keys()


def test_reflected_methods_equal_the_table(keyed: RunningServer) -> None:
    assert listed_methods(keyed) == GRPC.keys()


@pytest.mark.parametrize(("route", "scope"), (HTTP | HIDDEN).items())
def test_route_needs_a_key_with_its_scope(keyed: RunningServer, route: str, scope: str) -> None:
    without = send(keyed, route, None)
    if scope == "none":
        assert without == 200
        return
    assert without == 401
    for each, key in KEYS.items():
        status = send(keyed, route, key)
        assert (status == 403) == (each != scope), (each, status)
        assert status != 401


@pytest.mark.parametrize(("method", "scope"), (GRPC | HIDDEN_GRPC).items())
def test_method_needs_a_key_with_its_scope(keyed: RunningServer, method: str, scope: str) -> None:
    without = call(keyed, method, None)
    if scope == "none":
        assert without == "OK"
        return
    assert without == "UNAUTHENTICATED"
    for each, key in KEYS.items():
        status = call(keyed, method, key)
        assert (status == "PERMISSION_DENIED") == (each != scope), (each, status)
        assert status != "UNAUTHENTICATED"


@pytest.mark.parametrize("route", HTTP)
def test_another_tenants_key_sees_no_model(keyed: RunningServer, route: str) -> None:
    """Whether the path or the body names it, a model of another tenant does not exist."""
    method, path = route.split()
    body: dict[str, Any] = {"model": "vector", **OPENAI_BODIES.get(path.removeprefix("/v1/"), {})}
    if path in ("/infer", "/inference"):
        body = {"model_name": "vector", "input_data": [1.0]}
    path_of_model = path.format(name="vector", version="1", adapter="a", rest="model.onnx", collection="notes")
    given: dict[str, Any] = {"json": body if HTTP[route] == "infer" else None}
    if path in FORMS:
        given = {"data": {"model": "vector"}, "files": {"file": b"a"}}
    with keyed.client.stream(method, path_of_model, headers=FOREIGN.headers, **given) as answer:
        text = ""
        for part in answer.iter_text():
            text += part
            if "event: sample" in text:
                break  # it goes on for ever
    if "{name}" in path or "{collection}" in path or HTTP[route] == "infer":
        assert answer.status_code == 404, text
    else:
        assert answer.status_code in (200, 400), text
        assert '"vector"' not in text


NAMED = [method for method in GRPC if "Model" in method or "Predict" in method]


@pytest.mark.parametrize("method", NAMED)
def test_another_tenants_key_calls_no_model(keyed: RunningServer, method: str) -> None:
    """The message has one field, the name of the model."""
    numbers = {"Predict": 3, "RepositoryModelLoad": 2, "RepositoryModelUnload": 2}
    number = numbers.get(method.partition("/")[2], 1)
    content = bytes([number << 3 | 2, 6]) + b"vector"
    with grpc.insecure_channel(f"127.0.0.1:{keyed.grpc_port}") as channel:
        send_one: Any = channel.unary_unary(f"/{method}")
        if method.endswith("ModelStreamInfer"):
            # The errors of its requests are responses.
            assert b'"vector"' in send_one(content, metadata=FOREIGN.metadata)
            return
        if method.endswith("ModelReady"):
            assert send_one(content, metadata=FOREIGN.metadata) == b""  # not ready
            assert send_one(content, metadata=EVERY.metadata) == b"\x08\x01"
            return
        with pytest.raises(grpc.RpcError) as raised:
            send_one(content, metadata=FOREIGN.metadata)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_unknown_paths_need_any_key(keyed: RunningServer) -> None:
    for route in ("GET /absent", "POST /v1/absent", "GET /v2/absent", "GET /models/a/b/absent", "GET /docs/a/b"):
        assert send(keyed, route, None) == 401
        assert send(keyed, route, KEYS[Scope.INFER]) == 404
    for route in ("DELETE /metrics", "GET /infer", "OPTIONS /models", "POST /health/live", "PATCH /models/vector"):
        assert send(keyed, route, None) == 401
        assert send(keyed, route, KEYS[Scope.INFER]) == 405


def test_unknown_methods_need_any_key(keyed: RunningServer) -> None:
    for method in (f"{SERVICE}/Absent", "absent.Service/Call", "grpc.health.v1.Health/Absent"):
        assert call(keyed, method, None) == "UNAUTHENTICATED"
        assert call(keyed, method, KEYS[Scope.READ]) == "UNIMPLEMENTED"
