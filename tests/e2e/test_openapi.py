"""The OpenAPI document agrees with the routes and their bodies."""

import re
from typing import Any
from urllib.parse import urljoin

import pytest

from app import server_version
from app.protocols.native.fields import FIELDS
from app.protocols.shared.errors import ERROR_CODES
from tests.e2e.server import RunningServer
from tests.support.json_schema import meets

ROUTES = {
    "/": {"get", "post"},
    "/info": {"get"},
    "/docs": {"get"},
    "/api/tags": {"get"},
    "/api/ps": {"get"},
    "/api/version": {"get"},
    "/api/show": {"post"},
    "/api/chat": {"post"},
    "/api/generate": {"post"},
    "/api/embed": {"post"},
    "/api/embeddings": {"post"},
    "/infer": {"post"},
    "/inference": {"post"},
    "/models/{name}/infer": {"post"},
    "/models/{name}/versions/{version}/infer": {"post"},
    "/models": {"get", "post"},
    "/models/{name}": {"get", "post", "delete"},
    "/models/{name}/adapters": {"post"},
    "/models/{name}/adapters/{adapter}": {"delete"},
    "/models/{name}/load": {"post"},
    "/models/{name}/unload": {"post"},
    "/models/{name}/rollback": {"post"},
    "/health": {"get"},
    "/health/live": {"get"},
    "/health/ready": {"get"},
    "/metrics": {"get"},
    "/events": {"get"},
    "/requests": {"get"},
    "/folders": {"get"},
    "/models/{name}/files": {"get"},
    "/models/{name}/files/{rest}": {"get"},
    "/v1/completions": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/responses": {"post"},
    "/v1/responses/input_tokens": {"post"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/v1/embeddings": {"post"},
    "/v1/audio/transcriptions": {"post"},
    "/v1/audio/translations": {"post"},
    "/v1/rerank": {"post"},
    "/v1/score": {"post"},
    "/v1/tokenize": {"post"},
    "/v1/detokenize": {"post"},
    "/v1/classify": {"post"},
    "/v1/audio/speech": {"post"},
    "/v1/similarity": {"post"},
    "/v1/collections": {"get", "post"},
    "/v1/collections/{collection}": {"get", "delete"},
    "/v1/collections/{collection}/search": {"post"},
    "/v1/collections/{collection}/upsert": {"post"},
    "/v1/collections/{collection}/delete": {"post"},
    "/v1/collections/{collection}/records/{rest}": {"get"},
    "/v1/models": {"get"},
    "/v1/models/{name}": {"get"},
    "/v1/models/{name}:predict": {"post"},
    "/v2/models/{name}/infer": {"post"},
    "/v2/models/{name}/versions/{version}/infer": {"post"},
    "/v2/models/{name}/generate": {"post"},
    "/v2/models/{name}/versions/{version}/generate": {"post"},
    "/v2/models/{name}/generate_stream": {"post"},
    "/v2/models/{name}/versions/{version}/generate_stream": {"post"},
}
ROUTES |= {
    f"/v2{path}": {"get"}
    for path in (
        "",
        "/health/live",
        "/health/ready",
        "/models/stats",
        *(
            f"/models/{{name}}{version}{part}"
            for version in ("", "/versions/{version}")
            for part in ("", "/ready", "/config", "/stats")
        ),
    )
}
# Routes of vLLM and Infinity at the root, of Text Embeddings and Text Generation Inference, and of Cohere.
ROUTES |= {
    f"/{name}": {"post"}
    for name in (
        *("embeddings", "rerank", "score", "classify", "tokenize", "detokenize", "pooling"),
        *("embed", "embed_sparse", "predict", "similarity", "generate", "generate_stream", "v2/embed", "v2/rerank"),
    )
}
REPOSITORY = tuple(f"/v2/repository/{order}" for order in ("index", "models/{name}/load", "models/{name}/unload"))
ROUTES |= {path: {"post"} for path in REPOSITORY}
# Shown by tests/app/protocols/native/test_generation.py, tests/e2e/test_adapters.py and test_speculation.py.
NOT_HERE = {
    "InferResponse": {
        "text", "finish_reason", "logprobs", "choices", "tokens_generated", "prompt_tokens",
        "accepted_prediction_tokens", "rejected_prediction_tokens", "multi_embeddings", "sparse_embeddings",
    },
    "OpenAiModel": {"root", "parent"},
    "Health": {"collections"},
    "ModelConfiguration": {"sequence_batching"},
}  # fmt: skip
MANAGEMENT = (
    *("/models", "/models/{name}", "/models/{name}/load", "/models/{name}/unload", "/models/{name}/rollback"),
    *("/models/{name}/adapters", "/models/{name}/adapters/{adapter}"),
    *REPOSITORY,
)
V2_PATHS = {
    "ServerLive": "/health/live",
    "ServerReady": "/health/ready",
    "ServerMetadata": "",
    "ModelReady": "/models/digits/ready",
    "ModelMetadata": "/models/digits",
    "ModelConfiguration": "/models/digits/config",
    "ModelStatisticsList": "/models/digits/stats",
    "OpenInferenceErrorResponse": "/nothing",
}
"""Schema of each response below /v2."""
INFERENCE = [path for path, methods in ROUTES.items() if methods == {"post"} and path not in (*MANAGEMENT, "/api/show")]


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    answer = server.client.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


def references(node: Any) -> set[str]:
    """Every `$ref` in the document."""
    if isinstance(node, dict):
        here = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return here.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()


def test_document_describes_every_route(document: Any) -> None:
    assert document["openapi"].startswith("3.")
    assert {path: set(operations) for path, operations in document["paths"].items()} == ROUTES


def test_document_operations_are_complete(document: Any) -> None:
    ids = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            ids.append(operation["operationId"])
            assert operation["responses"]
            names = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert names == set(re.findall(r"{(\w+)}", path))
    assert len(ids) == len(set(ids))


def test_document_references_resolve(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for reference in references(document):
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        assert name in schemas, reference


def test_infer_request_describes_every_field(document: Any) -> None:
    schema = document["components"]["schemas"]["InferRequest"]
    assert schema["properties"].keys() == FIELDS.keys()
    assert schema["additionalProperties"] is False
    assert all("description" in field for name, field in schema["properties"].items())


def test_document_describes_binary_tensors(document: Any) -> None:
    operation = document["paths"]["/v2/models/{name}/infer"]["post"]
    for content in (operation["requestBody"]["content"], operation["responses"]["200"]["content"]):
        assert content.keys() == {"application/json", "application/octet-stream"}


VERSIONS: list[Any] = [None, "9", 9, [], {}]
SHARES: list[Any] = [
    *(None, "9", 5, {}, {"version": "9"}, {"version": None, "percent": 5}, {"version": "9", "percent": 5, "kind": "x"}),
    *({"version": "9", "percent": percent} for percent in (0, 5, 99.5, 100, 101, -1, None, "5", True)),
]


@pytest.mark.parametrize("order", ["load", "unload"])
def test_document_describes_accepted_load_bodies(order: str, document: Any, server: RunningServer) -> None:
    """Every body that meets the schema is accepted (404: it names a version that does not exist), and no other."""
    request = document["paths"][f"/models/{{name}}/{order}"]["post"]["requestBody"]
    assert not request["required"]
    schema = request["content"]["application/json"]["schema"]
    bodies = [{}, {"other": 1}, *({"version": version} for version in VERSIONS)]
    bodies += [{name: share} for name in ("canary", "shadow") for share in SHARES]
    bodies += [{"version": None, "canary": None}, {"version": "9", "shadow": None}, {"canary": None, "shadow": None}]
    for body in bodies:
        status = server.client.post(f"/models/float64/{order}", json=body).status_code
        assert (status in (200, 404)) == meets(schema, body), (body, status)
        assert status in (200, 400, 404), (body, status)
    assert server.client.post("/models/float64/load").status_code == 200


def test_document_lists_errors_of_inference(document: Any) -> None:
    others = {"model_exists", "adapter_exists", "collection_exists", "not_found", "not_supported", "record_not_found"}
    for path in INFERENCE:
        responses = document["paths"][path]["post"]["responses"]
        for status, codes in ERROR_CODES.items():
            if status in (409, 501):
                continue  # only of routes that change models
            described = [code for code in codes if code not in others]
            if "{collection}" not in path:
                described = [code for code in described if code != "collection_not_found"]
            assert responses[str(status)]["description"] == ", ".join(described)
        assert set(responses) - {"200"} == {str(status) for status in ERROR_CODES} - {"409", "501"}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/rerank", ("RerankRequest", "TeiRerankRequest")),
        ("/tokenize", ("TokenizeRequest", "TeiTokenizeRequest")),
        ("/", ("TeiRootRequest", "TeiRerankRequest", "TeiSimilarityRequest", "TgiRootRequest")),
    ],
)
def test_document_describes_either_body_of_path(path: str, names: tuple[str, ...], document: Any) -> None:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    assert {"RerankResponse", "TeiRanks", "TeiTokens", "TeiRootResponse"} <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", {"inputs": 1, "stream": False}),
        ("/", {"inputs": 1}),
        ("/rerank", {"model": "minilm", "query": 1, "texts": []}),
        ("/rerank", {"model": "minilm", "query": 1, "documents": []}),
        ("/tokenize", {"model": "minilm", "inputs": 1}),
        ("/tokenize", {"model": "minilm", "prompt": 1}),
    ],
)
def test_error_of_shared_path_is_described(path: str, body: Any, document: Any, server: RunningServer) -> None:
    schemas = document["components"]["schemas"]
    described = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()
    names = [each["$ref"].rpartition("/")[2] for each in described["anyOf"]]
    (fits,) = [name for name in names if error.keys() == schemas[name]["properties"].keys() and of_type(error, name)]
    assert fits


def of_type(error: Any, name: str) -> bool:
    """Whether the type of an error is written as the protocol of the schema writes it."""
    return "error_type" not in error or (error["error_type"] == "Validation") == (name == "TeiErrorResponse")


@pytest.mark.parametrize("path", ["/", "/tokenize", "/detokenize", "/v1/detokenize", "/predict", "/v1/completions"])
def test_model_null_is_described_as_accepted(path: str, document: Any) -> None:
    schemas = document["components"]["schemas"]
    described = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for each in described.get("anyOf", [described]):
        model = schemas[each["$ref"].rpartition("/")[2]]["properties"]["model"]
        assert meets(model, None)
        assert not meets(model, "")


def test_info_and_events_are_described(document: Any) -> None:
    assert document["paths"]["/info"]["get"]["responses"].keys() >= {"200", "4XX", "5XX"}
    (content,) = document["paths"]["/events"]["get"]["responses"]["200"]["content"].values()
    assert meets(content["schema"], {"event": "hello", "data": "{}"})


def test_requests_with_empty_status_refused(server: RunningServer) -> None:
    answer = server.client.get("/requests?status=")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("status: expected a status like 503")


def test_responses_have_described_fields(document: Any, server: RunningServer) -> None:
    def ask(route: str, **body: object) -> Any:
        return server.client.post(f"/v1/{route}", json={"model": "minilm", **body}).json()

    schemas = document["components"]["schemas"]
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    v2_request = {"id": "7", "inputs": [tensor]}
    answers = {
        "InferResponse": server.infer("digits", inputs={"image": [[0] * 64]})
        | server.infer("digits", input_data=[0] * 64)
        | server.infer("minilm", text="a")
        | server.infer("classify", text="a"),
        "ModelDetail": server.client.get("/models/digits").json(),
        "ModelList": server.client.get("/models").json(),
        "Health": server.client.get("/health").json(),
        "ServerIndex": server.client.get("/").json(),
        "ErrorResponse": server.client.get("/nothing").json(),
        "OpenAiErrorResponse": server.client.get("/v1/nothing").json(),
        "OpenAiModelList": server.client.get("/v1/models").json(),
        "OpenAiModel": server.client.get("/v1/models/minilm").json(),
        "EmbeddingsResponse": ask("embeddings", input="a"),
        "RerankResponse": ask("rerank", query="a", documents=["b"]),
        "ScoreResponse": ask("score", text_1="a", text_2="b"),
        "TokenizeResponse": ask("tokenize", prompt="a"),
        "OpenInferenceResponse": server.client.post("/v2/models/float32/infer", json=v2_request).json(),
        "OpenInferenceErrorResponse": server.client.get("/v2/nothing").json(),
        "ClassifyResponse": ask("classify", model="classify", input="a"),
        "PoolingResponse": server.client.post("/pooling", json={"model": "minilm", "input": "a"}).json(),
        "CohereEmbedResponse": server.client.post("/v2/embed", json={"model": "minilm", "texts": ["a"]}).json(),
        "CohereRerankResponse": server.client.post(
            "/v2/rerank", json={"model": "minilm", "query": "a", "documents": []}
        ).json(),
        "CohereErrorResponse": server.client.post("/v2/embed", json={}).json(),
        "TeiErrorResponse": server.client.post("/embed", json={}).json(),
        "TeiInfo": server.client.get("/info?model=minilm").json(),
        "DetokenizeResponse": ask("detokenize", tokens=[101]),
        **{name: server.client.get(f"/v2{path}").json() for name, path in V2_PATHS.items()},
    }
    for name, answer in answers.items():
        described = schemas[name]["properties"].keys()
        assert answer.keys() == described - NOT_HERE.get(name, set()), name
        assert set(schemas[name].get("required", [])) <= answer.keys()
    (statistics,) = answers["ModelStatisticsList"]["model_stats"]
    assert statistics.keys() == schemas["ModelStatistics"]["properties"].keys()
    assert statistics["inference_stats"].keys() == schemas["InferStatistics"]["properties"].keys()
    (version,) = answers["ModelDetail"]["version_details"].values()
    assert version.keys() == schemas["VersionDetail"]["properties"].keys()


def test_index_links_all_answer(server: RunningServer) -> None:
    index = server.client.get("/").json()
    assert (index["name"], index["version"]) == ("roundhouse", server_version())
    assert index["links"].keys() == {"docs", "openapi", "health", "metrics", "models"}
    for path in index["links"].values():
        assert server.client.get(path).status_code == 200


@pytest.mark.parametrize(("path", "root"), [("/docs", "."), ("/docs/", "..")])
def test_docs_page_loads_only_own_files(path: str, root: str, server: RunningServer) -> None:
    page = server.client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "://" not in page.text
    addresses = re.findall(r"(?:src|href)=[\"']([^\"']+)[\"']|url: '([^']+)'", page.text)
    found = {}
    for address in (first or second for first, second in addresses):
        answer = server.client.get(urljoin(server.url + path, address))
        assert answer.status_code == 200, address
        found[address] = answer.headers["content-type"]
    assert found == {
        f"{root}/docs/swagger-ui.css": "text/css; charset=utf-8",
        f"{root}/docs/favicon.png": "image/png",
        f"{root}/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
        f"{root}/openapi.json": "application/json",
    }


def test_docs_styles_load_nothing_foreign(server: RunningServer) -> None:
    styles = server.client.get("/docs/swagger-ui.css").text
    assert "@import" not in styles
    assert all(target.lstrip("\"'").startswith(("data:", "#")) for target in re.findall(r"url\(([^)]*)", styles))


def test_document_describes_keys(document: Any) -> None:
    schemes = document["components"]["securitySchemes"]
    assert {name for each in document["security"] for name in each} == schemes.keys()
    assert (schemes["bearer"]["scheme"], schemes["x-api-key"]["name"]) == ("bearer", "x-api-key")
    open_paths = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if operation.get("security") == []
    }
    assert open_paths == {"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/docs"}
