"""No route and no method shows a path of the machine to a key without the scope `manage`, whatever fails."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from app.auth.permissions import GRPC_ACCESS
from app.auth.principal import Scope
from app.extension import http_access
from app.grpc import messages
from tests.e2e.server import GRPC_PORT, MODELS, RunningServer, free_port, serving, wait_until
from tests.e2e.tenant_requests import GRPC_CALLS, HTTP_REQUESTS, LATE, SERVICE
from tests.support.keyring import make_key, write_keys
from tests.support.models import onnx_graphs

HTTP_ACCESS = http_access()

OPERATOR = make_key("ops")
PLAIN = make_key("ops", Scope.INFER, Scope.READ, Scope.WRITE)
BROKEN = ("absent", "graph", "config", "weights", "packed", "quantized", "process")
RUNS, PIPELINE = "runs", "steps"
INDICES: dict[str, Any] = {"name": "indices", "shape": [1], "datatype": "INT64", "data": [9]}

CHAT = [{"role": "user", "content": "a"}]
REQUESTS: list[tuple[str, str, Any]] = [
    *(each for each in HTTP_REQUESTS if each[0] == "GET" or HTTP_ACCESS.get(each[1], {}).get("POST")),
    *(("GET", path, None) for path in HTTP_ACCESS if "GET" in HTTP_ACCESS[path] and path != "/events"),
    ("POST", "/", {"inputs": "a"}),
    ("POST", "/models/{name}/infer", {"text": "a"}),
    ("POST", "/models/{name}/infer", {"inputs": {"indices": [9]}}),
    ("POST", "/models/{name}/versions/{version}/infer", {"prompt": "a", "stream": True}),
    ("POST", "/models/{name}", {"inputs": "a"}),
    ("POST", "/v1/completions", {"model": "{name}", "prompt": "a", "stream": True}),
    ("POST", "/v1/messages", {"model": "{name}", "messages": CHAT, "max_tokens": 1}),
    ("POST", "/v1/messages/count_tokens", {"model": "{name}", "messages": CHAT}),
    ("POST", "/v1/classify", {"model": "{name}", "input": "a"}),
    ("POST", "/v1/audio/speech", {"model": "{name}", "input": "a"}),
    ("POST", "/v1/audio/transcriptions", {"model": "{name}"}),
    ("POST", "/v1/audio/translations", {"model": "{name}"}),
    ("POST", "/v1/similarity", {"model": "{name}", "sources": "a", "targets": ["b"]}),
    ("POST", "/v1/collections", {"name": "made", "dimensions": 0}),
    ("DELETE", "/v1/collections/{collection}", None),
    ("POST", "/v1/collections/{collection}/search", {"vector": [1, 2]}),
    ("POST", "/v1/collections/{collection}/upsert", {"records": [{"id": "a", "vector": [1, 2]}]}),
    ("POST", "/v1/collections/{collection}/delete", {"ids": ["a"]}),
    ("POST", "/embeddings", {"model": "{name}", "input": "a"}),
    ("POST", "/rerank", {"query": "a", "texts": ["b"]}),
    ("POST", "/score", {"model": "{name}", "text_1": "a", "text_2": "b"}),
    ("POST", "/classify", {"model": "{name}", "input": "a"}),
    ("POST", "/tokenize", {"model": "{name}", "prompt": "a"}),
    ("POST", "/detokenize", {"model": "{name}", "tokens": [1]}),
    ("POST", "/pooling", {"model": "{name}", "input": "a"}),
    ("POST", "/embed", {"inputs": "a"}),
    ("POST", "/embed_sparse", {"inputs": "a"}),
    ("POST", "/predict", {"inputs": "a"}),
    ("POST", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("POST", "/generate", {"inputs": "a"}),
    ("POST", "/generate_stream", {"inputs": "a"}),
    ("POST", "/v2/embed", {"model": "{name}", "texts": ["a"]}),
    ("POST", "/v2/rerank", {"model": "{name}", "query": "a", "documents": ["b"]}),
    ("POST", "/v2/models/{name}/infer", {"inputs": [INDICES]}),
    ("POST", "/v2/models/{name}/versions/{version}/infer", {"inputs": [INDICES]}),
    ("POST", "/v2/models/{name}/versions/{version}/generate", {"text_input": "a"}),
    ("POST", "/v2/models/{name}/generate_stream", {"text_input": "a"}),
    ("POST", "/v2/models/{name}/versions/{version}/generate_stream", {"text_input": "a"}),
    ("POST", "/v2/repository/index", {}),
    ("POST", "/v1/models/{name}:predict", {"instances": [9]}),
    ("POST", "/api/show", {"model": "{name}"}),
    ("POST", "/api/chat", {"model": "{name}", "messages": CHAT}),
    ("POST", "/api/generate", {"model": "{name}", "prompt": "a"}),
    ("POST", "/api/embed", {"model": "{name}", "input": "a"}),
    ("POST", "/api/embeddings", {"model": "{name}", "prompt": "a"}),
]
# Extensions that the server refuses without a look at a model.
REFUSED = ("/v2/systemsharedmemory", "/v2/cudasharedmemory", "/v2/trace", "/v2/logging", "/v2/models/{name}/trace")
CALLS = [
    *GRPC_CALLS,
    (SERVICE + "ServerLive", messages.ServerLiveRequest, messages.ServerLiveResponse, {}),
    (SERVICE + "ServerReady", messages.ServerReadyRequest, messages.ServerReadyResponse, {}),
    (SERVICE + "ServerMetadata", messages.ServerMetadataRequest, messages.ServerMetadataResponse, {}),
    (SERVICE + "RepositoryIndex", messages.RepositoryIndexRequest, messages.RepositoryIndexResponse, {}),
    *(
        (
            SERVICE + f"Model{kind}Infer",
            messages.ModelInferRequest,
            getattr(messages, f"Model{kind}InferResponse"),
            {
                "model_name": LATE,
                "inputs": [{"name": "indices", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [9]}}],
            },
        )
        for kind in ("", "Stream")
    ),
]
OTHER_METHODS = "/grpc."
"""Health and reflection."""


def entry(name: str, path: Path, table: str = "onnx_models", more: str = "") -> str:
    return f'[[models.{table}]]\nname = "{name}"\npath = "{path}"\n{more}\n'


def config_of(folder: Path) -> str:
    """Write models whose loads fail in different ways, and one whose runs fail with a path in the message, alone and as
    a step of a pipeline.
    """
    runs = onnx_graphs.gather()
    runs.graph.node[0].name = str(folder / "secret" / "node")
    for name in ("graph", RUNS, "config", "packed"):
        (folder / name).mkdir()
    onnx_graphs.save(runs, folder / RUNS)
    (folder / "graph" / "model.onnx").write_bytes(b"no graph")
    (folder / "config" / "config.json").write_text("{", encoding="utf-8")
    (folder / "packed" / "model.gguf").write_bytes(b"GGUF")
    shutil.copytree(MODELS / "tiny-llama", folder / "weights")
    for file in (folder / "weights").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    (folder / "cache").touch()
    numbers = folder / "collections" / "numbers"
    numbers.mkdir(parents=True)
    (numbers / "records.sqlite").write_bytes(b"no database" * 1000)
    steps = '{ name = "gather", model = "runs", inputs = { indices = "indices" } }'
    return "".join(
        [
            entry("absent", folder / "absent"),
            entry("graph", folder / "graph"),
            entry("config", folder / "config", "torch_models"),
            entry("weights", folder / "weights", "torch_models"),
            entry("packed", folder / "packed", "torch_models"),
            entry("quantized", MODELS / "digits", more="quantized = true"),
            entry("process", folder / "graph" / "model.onnx", more='isolation = "process"'),
            entry(RUNS, folder / RUNS),
            f'[[pipelines]]\nname = "steps"\ninputs = ["indices"]\noutputs = {{ y = "gather" }}\nsteps = [{steps}]\n',
            f'[[collections]]\nname = "numbers"\ndimensions = 2\npath = "{numbers}"\n',
            f'[models]\ncache_dir = "{folder / "cache"}"\nroots = ["{folder}"]\ndefault_model = "weights"\n',
            '[auth]\nmode = "required"\n[[auth.tenants]]\nname = "ops"\noperator = true\n',
        ]
    )


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory, workers: int) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module", name="workers", params=[1, pytest.param(2, marks=pytest.mark.extended)])
def _workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module", name="secrets")
def _secrets(folder: Path) -> tuple[str, ...]:
    return str(MODELS), str(folder), folder.name


@pytest.fixture(scope="module", name="failing")
def _failing(folder: Path, workers: int) -> Iterator[RunningServer]:
    write_keys(folder / "keys.toml", OPERATOR, PLAIN)
    config = f"[server]\nworkers = {workers}\n{config_of(folder)}"
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        for name in BROKEN:
            server.wait_for_log("model failed to load", 60, model=name)
        wait_until(lambda: server.client.get(f"/v2/models/{PIPELINE}/ready", headers=PLAIN.headers).is_success)
        yield server


def check(text: str, secrets: tuple[str, ...], what: object) -> None:
    assert not any(secret in text for secret in secrets), f"{what}: {text[:2000]}"


def filled(template: str, name: str) -> str:
    return (
        template.replace("{name}", name)
        .replace("{version}", "1")
        .replace("{collection}", "numbers")
        .replace("{rest:path}", "model.onnx")
        .replace("{file}", "x")
    )


def test_every_route_is_asked() -> None:
    asked = {(method, path.replace("/versions/1", "/versions/{version}")) for method, path, _ in REQUESTS}
    for path, methods in HTTP_ACCESS.items():
        for method, access in methods.items():
            if access.scope is not Scope.MANAGE and path != "/events" and not path.startswith(REFUSED):
                assert (method, path) in asked
    assert {path for path in GRPC_ACCESS if not path.startswith(OTHER_METHODS)} == {path for path, *_ in CALLS}


@pytest.mark.parametrize("name", [*BROKEN, RUNS, PIPELINE])
def test_routes_show_no_path(failing: RunningServer, secrets: tuple[str, ...], name: str) -> None:
    for method, path, body in REQUESTS:
        content = None if body is None else json.dumps(body).replace("{name}", name)
        headers = {"content-type": "application/json", **PLAIN.headers}
        response = failing.client.request(method, filled(path, name), content=content, headers=headers)
        assert response.status_code != 500, (method, path)
        check(response.text + str(response.headers), secrets, (method, path))
    with failing.client.stream("GET", "/events", headers=PLAIN.headers) as events:
        lines = events.iter_lines()
        text = next(line for line in lines if name in line)
        check(text, secrets, "/events")


@pytest.mark.parametrize("name", [*BROKEN, RUNS, PIPELINE])
def test_methods_show_no_path(failing: RunningServer, secrets: tuple[str, ...], name: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{failing.grpc_port}") as channel:
        for path, request, response, fields in CALLS:
            named = {key: name if value == LATE else value for key, value in fields.items()}
            send: Any = channel.stream_stream(path, lambda one: one.SerializeToString(), response.FromString)
            try:
                text = str(list(send(iter([request(**named)]), metadata=PLAIN.metadata, timeout=60)))
            except grpc.RpcError as error:
                text = f"{error.details()} {error.trailing_metadata()}"
            check(text, secrets, path)


@pytest.mark.parametrize("name", BROKEN)
def test_operator_and_log_get_the_path(failing: RunningServer, secrets: tuple[str, ...], name: str) -> None:
    plain, full = (failing.client.get(f"/models/{name}", headers=key.headers).json() for key in (PLAIN, OPERATOR))
    assert any(secret in full["reason"] for secret in secrets)
    assert any(secret in full["version_details"]["1"]["path"] for secret in secrets)
    assert plain["version_details"]["1"]["path"] is None
    assert plain["reason"].endswith("; the log of the server has the reason")
    logged = failing.wait_for_log("model failed to load", model=name)
    assert any(secret in logged["reason"] for secret in secrets)


def test_failed_run_names_the_node_without_its_folder(failing: RunningServer) -> None:
    body = {"inputs": {"indices": [9]}}
    response = failing.client.post(f"/models/{RUNS}/infer", json=body, headers=PLAIN.headers)
    assert response.status_code == 400
    assert "the graph refuses these values" in response.json()["error"]["message"]
    assert "node" in response.json()["error"]["message"]
