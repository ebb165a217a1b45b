"""The same requests to the same models, in the server's process and in processes of their own: equal responses."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.configs import onnx_entries, save_onnx_classifier
from tests.e2e.engines import ISOLATED, engines, wait_at_rest
from tests.e2e.server import GRPC_PORT, MODELS, RunningServer, free_port, serving, wait_until
from tests.e2e.triton_clients import grpc_tensor, http_tensor, string_array, triton_client
from tests.support.alike import check_alike
from tests.support.models import onnx_graphs

Servers = tuple[RunningServer, RunningServer]

GRAPHS = {
    "free": onnx_graphs.free("n", "m"),
    "concat": onnx_graphs.concat(),
    "zip": onnx_graphs.zip_map(),
    "bfloat16": onnx_graphs.identity("bfloat16", None),
}
CLASSIFIERS = {"classify-onnx": ("fast", "slow", "late"), "cross-encoder": ("LABEL_0",)}
"""Models of ONNX Runtime: each process that imports torch takes seconds to start."""
TORCH = ("minilm", "tiny-llama")
TEXTS = ["Engines wait in a shed.", "", "naïve cafés — 你好", "the cat sat on the mat . " * 20]
DOCUMENTS = ["Bread rises overnight.", "A roundhouse is where engines wait."]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
GREEDY = {"temperature": 0, "max_tokens": 24}
MESSAGES = [{"role": "user", "content": "What is a list?"}]
_CHAT = {"model": "tiny-llama", "messages": MESSAGES, **GREEDY}
_RERANK = {"model": "cross-encoder", "query": "Where do engines wait?", "documents": DOCUMENTS}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("/models/free/infer", {"input_data": [[[1, 2, 3]]]}),
    "tensor-in-shared-memory": (
        "/models/free/infer",
        {"input_data": np.arange(30_000.0).reshape(100, 100, 3).tolist()},
    ),
    "wrong-rows": ("/models/free/infer", {"inputs": {"x": []}}),
    "wrong-shape": ("/models/free/infer", {"input_data": [[1, 2]]}),
    "wrong-values": ("/models/free/infer", {"input_data": [[["a", "b", "c"]]]}),
    "unknown-input": ("/models/free/infer", {"inputs": {"z": [1]}}),
    "bfloat16": ("/models/bfloat16/infer", {"input_data": [0.5, -3, 1e30]}),
    "strings": ("/models/concat/infer", {"inputs": {"a": ["ž", ""], "b": ["x" * 40_000], "c": [[1, 2]]}}),
    "maps": ("/models/zip/infer", {"input_data": [[0.25, 0.5, 0.25]]}),
    "open-inference": (
        "/v2/models/free/infer",
        {"inputs": [{"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}]},
    ),
    "embed": ("/models/minilm/infer", {"text": TEXTS}),
    "embed-too-long": ("/models/minilm/infer", {"text": "word " * 3000, "truncate": False}),
    "embed-nothing": ("/models/minilm/infer", {"text": []}),
    "classify": ("/models/classify-onnx/infer", {"text": TEXTS}),
    "rerank": ("/v1/rerank", _RERANK),
    "tokenize": ("/v1/tokenize", {"model": "tiny-llama", "prompt": TEXTS[2]}),
    "tokenize-chat": ("/v1/tokenize", {"model": "tiny-llama", "messages": MESSAGES}),
    "detokenize": ("/v1/detokenize", {"model": "tiny-llama", "tokens": [5, 60, 200]}),
    "detokenize-unknown": ("/v1/detokenize", {"model": "tiny-llama", "tokens": [10**7]}),
    "generate": ("/models/tiny-llama/infer", {"prompt": "A list is", **GREEDY}),
    "generate-seeded": ("/models/tiny-llama/infer", {"prompt": "A list is", "seed": 3, "n": 2, "max_tokens": 20}),
    "generate-to-stop": ("/models/tiny-llama/infer", {"prompt": "A list is", "stop": ["the", "."], **GREEDY}),
    "generate-too-long": ("/models/tiny-llama/infer", {"prompt": "word " * 3000, **GREEDY}),
    "logprobs": ("/v1/completions", {"model": "tiny-llama", "prompt": "A list is", "logprobs": 3, **GREEDY}),
    "prompt-scores": (
        "/v1/completions",
        {"model": "tiny-llama", "prompt": TEXTS, "echo": True, "logprobs": 2, "prompt_logprobs": 3, "max_tokens": 0},
    ),
    "chat": ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 2}),
    "responses": ("/v1/responses", {"model": "tiny-llama", "input": "Tell me a story.", "temperature": 0}),
    "chat-by-schema": (
        "/v1/chat/completions",
        {
            **_CHAT,
            "max_tokens": 60,
            "seed": 1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        },
    ),
    "chat-by-impossible-schema": (
        "/v1/chat/completions",
        {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no"}}}},
    ),
}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": (
        "/v1/completions",
        {"model": "tiny-llama", "prompt": "A list is", "echo": True, "logprobs": 1, "stream": True, **GREEDY},
    ),
    "text": ("/models/tiny-llama/infer", {"prompt": "A list is", **GREEDY}),
    "seeded": ("/models/tiny-llama/infer", {"prompt": "A list is", "seed": 3, "n": 2, "max_tokens": 20}),
    "stop": ("/models/tiny-llama/infer", {"prompt": "A list is", "stop": ["the", "."], **GREEDY}),
    "chat": ("/v1/chat/completions", {**_CHAT, "stream_options": {"include_usage": True}}),
}
_VOLATILE = {
    "id", "created", "created_at", "completed_at", "request_id",
    "path", "isolation", "uptime_seconds", "latency_ms",
}  # fmt: skip
"""Keys whose values differ between two servers, or two times of one."""
_TOLERANCE = 1e-4
"""Of numbers: each process measures which kernels are faster on its CPU, and may choose others on a busy machine."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server whose models are in its process, and one whose models have their own."""
    folder = tmp_path_factory.mktemp("parity")
    entries = onnx_entries(folder, GRAPHS)
    for name, labels in CLASSIFIERS.items():
        path = save_onnx_classifier(folder / name, labels)
        entries += f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\n'
    entries += "".join(f'[[models.torch_models]]\nname = "{name}"\npath = "{MODELS / name}"\n' for name in TORCH)
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
    with (
        serving(folder / "ours", entries, {GRPC_PORT: free_port()}) as ours,
        serving(folder / "theirs", entries + ISOLATED, {GRPC_PORT: free_port()}) as theirs,
    ):
        both = ours.wait_ready(), theirs.wait_ready()
        assert (len(engines(ours)), len(engines(theirs))) == (0, len(GRAPHS) + len(CLASSIFIERS) + len(TORCH))
        yield both
        for server in both:
            server.check_log()


def steady(value: Any) -> Any:
    """Return the part of a response that is the same for the same requests."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in _VOLATILE}
    return [steady(item) for item in value] if isinstance(value, list) else value


def ask(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    answer = server.client.post(path, json=body)
    return answer.status_code, steady(answer.json())


@pytest.mark.parametrize("name", REQUESTS)
def test_response_equals_that_of_local_model(servers: Servers, name: str) -> None:
    path, body = REQUESTS[name]
    ours, theirs = (ask(server, path, body) for server in servers)
    is_copied = any(f"/models/{graph}/" in path for graph in GRAPHS)
    check_alike(theirs, ours, 0 if is_copied else _TOLERANCE)
    assert (ours[0] == 200) == (not name.startswith(("wrong", "unknown")) and not name.endswith(_REFUSED)), ours


_REFUSED = ("too-long", "unknown", "impossible-schema")


@pytest.mark.parametrize("name", STREAMS)
def test_stream_equals_that_of_local_model(servers: Servers, name: str) -> None:
    path, body = STREAMS[name]
    ours, theirs = (stream(server, path, body) for server in servers)
    check_alike(theirs, ours, _TOLERANCE)
    assert len(ours) > 2


def test_embeddings_equal_those_of_local_model(servers: Servers) -> None:
    """As base64, which has all bits: those of products of matrices may depend on the place of their numbers."""
    body = {"model": "minilm", "input": DOCUMENTS, "encoding_format": "base64"}
    answers = [server.client.post("/v1/embeddings", json=body).json()["data"] for server in servers]
    for ours, theirs in zip(*answers, strict=True):
        one, other = (np.frombuffer(base64.b64decode(each["embedding"]), np.float32) for each in (ours, theirs))
        np.testing.assert_allclose(one, other, atol=1e-6)


def stream(server: RunningServer, path: str, body: dict[str, Any]) -> list[Any]:
    with server.client.stream("POST", path, json=body | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert answer.status_code == 200
    pieces = [steady(json.loads(line)) for line in lines if line != "[DONE]"]
    # The pieces of two choices arrive in any order.
    return sorted(pieces, key=lambda piece: piece.get("index", 0))


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("rows", [1, 1000])
def test_binary_tensors_equal_local_bits(servers: Servers, kind: str, rows: int) -> None:
    numbers = np.random.default_rng(1).standard_normal((rows, 7, 3), np.float32)
    for server in servers:
        with triton_client(server, kind) as client:
            given = http_tensor("x", numbers) if kind == "http" else grpc_tensor("x", numbers, "FP32")
            np.testing.assert_array_equal(client.infer("free", [given]).as_numpy("y"), numbers, strict=True)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_strings_and_errors_equal_local(servers: Servers, kind: str) -> None:
    texts, numbers = string_array("a", "ž" * 20_000), np.array([[1, 2]], np.int32)
    answers, errors = [], []
    for server in servers:
        with triton_client(server, kind) as client:
            arrays = {"a": texts, "b": texts[:1], "c": numbers}
            if kind == "http":
                given = [http_tensor(name, array) for name, array in arrays.items()]
            else:
                given = [grpc_tensor(name, array, _DATATYPES[name]) for name, array in arrays.items()]
            answer = client.infer("concat", given)
            answers.append([answer.as_numpy(name).tolist() for name in ("joined", "doubled")])
            with pytest.raises(InferenceServerException) as refused:
                client.infer("concat", given[:1])
            errors.append(refused.value.message())
    assert answers[0] == answers[1]
    assert errors[0] == errors[1]


_DATATYPES = {"a": "BYTES", "b": "BYTES", "c": "INT32"}


def test_models_and_metrics_equal_local(servers: Servers) -> None:
    """The last test of this file: it counts the requests of all others."""
    ours, theirs = servers
    names = [model["name"] for model in ours.client.get("/models").json()["models"]]
    wait_at_rest(theirs, len(names))
    wait_at_rest(ours, 0)
    for name in names:
        path = f"/v2/models/{name}"
        assert theirs.client.get(path).json() == ours.client.get(path).json()
        mine, other = (describe(server.client.get(f"/models/{name}")) for server in servers)
        assert other == mine
        wait_for_counts(servers, name)
    assert theirs.sample("roundhouse_requests_total") == ours.sample("roundhouse_requests_total") > len(REQUESTS)


_MEASURED = {
    "memory_bytes",
    "load_seconds",
    "warm_up_seconds",
    "load_s",
    "warm_up",
    "last_used",
    "latency_ms",
    "loaded_at",
    "kernels",
    "awaits_kernels",
    "progress",
}


def describe(answer: httpx.Response) -> Any:
    """Return what /models says, without measurements."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in _MEASURED}
        return value

    assert answer.status_code == 200
    return without(steady(answer.json()))


def wait_for_counts(servers: Servers, model: str) -> None:
    """Wait until both have the same counts: those of a process arrive within 50 ms."""
    ours, theirs = servers
    wait_until(lambda: counts(theirs, model) == counts(ours, model))


def counts(server: RunningServer, model: str) -> dict[str, float]:
    """Return the counters of a model that do not depend on times. Tokens beyond a stop string do."""
    names = ("requests_total", "prompt_tokens_total", "batch_size_sum")
    return {name: server.sample(f"roundhouse_{name}", model=model) for name in names}
