"""/models: what is registered, and registering, loading, unloading and deleting while the server runs."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.load import slow_model, wait_for_inflight
from tests.e2e.server import MODELS, WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.models import onnx_graphs

DESCRIBED = {
    "name", "aliases", "framework", "task", "state", "reason", "versions", "device", "dtype", "quantized",
    "quantization", "kernels", "awaits_kernels", "progress", "attention", "vision", "source", "graphs", "downloadable",
    "memory_bytes", "warm_up", "inputs", "outputs", "vectors", "other_vectors", "reads", "parameters", "image",
    "last_used", "requests",
}  # fmt: skip
IMAGE = {"input_data": [0] * 64}


def make_roots(beside: Path) -> Path:
    """A folder that models may be registered from, with some that can and some that cannot be loaded."""
    folder = beside / "roots"
    folder.mkdir()
    onnx_entries(folder, {"good": onnx_graphs.add()})
    (folder / "bad.onnx").write_bytes(b"no graph at all")
    (folder / "text.txt").write_text("no model", encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "pickled").mkdir()
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (folder / "pickled" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    outside = beside / "outside"
    outside.mkdir()
    onnx_entries(outside, {"secret": onnx_graphs.add()})
    (folder / "link").symlink_to(outside / "secret")
    (folder / "within").symlink_to(folder / "good")
    (folder / "loop").symlink_to(folder / "loop")
    return folder


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    return make_roots(tmp_path)


@pytest.fixture
def own_server(start: Start, roots: Path) -> RunningServer:
    """digits, and a root to register from."""
    return start(f'[models]\nroots = ["{roots}"]\n' + DIGITS)


def register(server: RunningServer, **body: object) -> httpx.Response:
    return server.client.post("/models", json=body)


def test_list_shows_every_model(server: RunningServer) -> None:
    models = {model["name"]: model for model in server.client.get("/models").json()["models"]}
    assert {"digits", "minilm", "minilm-onnx", "float32", "classify"} <= models.keys()
    for model in models.values():
        assert model.keys() == DESCRIBED
        assert (model["state"], model["reason"], model["versions"]) == ("ready", None, ["1"])
        assert (model["device"], model["quantized"], model["quantization"]) == ("cpu", False, None)
        assert model["framework"] in ("onnx", "pytorch")
        assert model["memory_bytes"] > 0
    assert models["minilm"]["framework"] == "pytorch"
    assert [models[name]["task"] for name in ("digits", "minilm", "minilm-onnx", "classify")] == [
        "tensor", "embed", "embed", "classify",
    ]  # fmt: skip
    assert models["digits"]["inputs"] == [{"name": "image", "dtype": "float32", "shape": [-1, 64]}]
    assert models["digits"]["outputs"] == [
        {"name": "output_label", "dtype": "int64", "shape": [-1]},
        {"name": "output_probability", "dtype": "sequence(map(int64, float32))", "shape": None},
    ]
    assert models["minilm"]["outputs"] == [{"name": "embeddings", "dtype": "float32", "shape": [-1, 384]}]
    # The first model pays for the modules of its kernels. With AMX a weight of float32 may take 6 bytes.
    assert 85e6 < models["minilm"]["memory_bytes"] < 180e6


def test_model_detail(server: RunningServer) -> None:
    detail = server.client.get("/models/minilm-onnx").json()
    assert detail.keys() == DESCRIBED | {
        "version_details", "active_version", "previous_version", "canary", "shadow", "adapters",
    }  # fmt: skip
    (version,) = detail["version_details"].values()
    assert version.keys() == {
        "state", "reason", "device", "memory_bytes",
        "providers", "max_tokens", "labels", "loads", "load_seconds", "queue_depth", "path",
        "warm_up", "batching", "padding", "max_batch_size", "instances", "revision", "download",
        "sequences",
    }  # fmt: skip
    assert version["max_tokens"] == 256
    assert version["providers"][-1] == "CPUExecutionProvider"
    assert version["loads"] == 1
    assert server.client.get("/models/classify").json()["version_details"]["1"]["labels"] == ["fast", "slow", "late"]
    assert_refused(server.client.get("/models/nimilm"), 404, "model_not_found", "minilm")


def test_requests_and_last_use_counted(server: RunningServer) -> None:
    before = server.client.get("/models/uint8").json()
    server.infer("uint8", input_data=[1])
    server.client.post("/models/uint8/infer", json={"input_data": [-1]})
    after = server.client.get("/models/uint8").json()
    assert after["requests"]["total"] == before["requests"]["total"] + 2
    assert after["requests"]["failed"] == before["requests"]["failed"] + 1
    assert after["requests"]["inflight"] == 0
    used = datetime.fromisoformat(after["last_used"])
    assert abs((datetime.now(UTC) - used).total_seconds()) < WAIT_S


def test_model_registered_used_and_deleted(own_server: RunningServer, roots: Path) -> None:
    answer = register(own_server, name="sums", path=str(roots / "good"))
    assert answer.status_code == 201, answer.text
    assert (answer.json()["name"], answer.json()["state"]) == ("sums", "ready")
    assert answer.json()["framework"] == "onnx"
    inputs = {"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]}
    assert own_server.infer("sums", inputs=inputs)["outputs"]["sum"]["data"] == [[2, 3, 4, 5]]
    again = register(own_server, framework="onnx", name="sums", path=str(roots / "good"))
    assert_refused(again, 409, "model_exists", '"sums" is registered already')
    for options in ({"input_shape": [2, 4], "execution_providers": ["CPU"], "max_batch_size": 4}, {}):
        other = register(own_server, framework="onnx", name="other", path=str(roots / "good" / "model.onnx"), **options)
        assert other.status_code == 201, other.text
        assert own_server.client.delete("/models/other").json() == {"deleted": "other"}
    assert register(own_server, framework="onnx", name="within", path=str(roots / "within")).status_code == 201
    assert own_server.client.delete("/models/sums").status_code == 200
    assert_refused(
        own_server.client.post("/models/sums/infer", json={"inputs": inputs}), 404, "model_not_found", '"sums"'
    )
    assert_refused(own_server.client.delete("/models/sums"), 404, "model_not_found")
    assert [model["name"] for model in own_server.client.get("/models").json()["models"]] == ["digits", "within"]
    assert 'model="sums"' not in own_server.client.get("/metrics").text


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"framework": None, "name": "x", "path": "good"}, 400, "invalid_input", ["framework:", "onnx"]),
        ({"framework": "tensorflow", "name": "x", "path": "good"}, 400, "invalid_input", ["framework:"]),
        ({"framework": ["onnx"], "name": "x", "path": "good"}, 400, "invalid_input", ["framework:"]),
        ({"framework": {}, "name": "x", "path": "good"}, 400, "invalid_input", ["framework:"]),
        ({"name": "x", "path": "empty"}, 400, "invalid_input", ["path:", "expected an .onnx or .gguf file"]),
        ({"name": "x", "path": "text.txt"}, 400, "invalid_input", ["path:", "name the files of a model"]),
        ({"name": "x", "path": "link"}, 403, "forbidden", ["models.roots"]),
        ({"name": "x", "path": "good", "dtype": "f16"}, 400, "unknown_field", ["dtype"]),
        ({"name": "x"}, 400, "invalid_input", ["path", "expected a value, got none"]),
        ({"framework": "onnx", "path": "good"}, 400, "invalid_input", ["name", "expected a value, got none"]),
        ({"framework": "onnx", "name": "x"}, 400, "invalid_input", ["path", "expected a value, got none"]),
        ({"framework": "onnx"}, 400, "invalid_input", ["name", "path"]),
        ({"framework": "onnx", "name": "a b", "path": "good"}, 400, "invalid_input", ["name:"]),
        ({"framework": "onnx", "name": "x/y/z", "path": "good"}, 400, "invalid_input", ["name:"]),
        ({"framework": "onnx", "name": "", "path": "good"}, 400, "invalid_input", ["name:"]),
        ({"framework": "onnx", "name": 1, "path": "good"}, 400, "invalid_input", ["name:"]),
        ({"framework": "onnx", "name": "x", "path": 1}, 400, "invalid_input", ["path:"]),
        ({"framework": "onnx", "name": "x", "path": ""}, 400, "invalid_input", ["path:"]),
        ({"framework": "onnx", "name": "x", "path": "a\0b"}, 400, "invalid_input", ["path:"]),
        ({"framework": "onnx", "name": "x", "path": "good", "quantised": True}, 400, "unknown_field", ["quantized"]),
        ({"framework": "onnx", "name": "x", "path": "good", "dtype": "f32"}, 400, "unknown_field", ["dtype:"]),
        ({"framework": "onnx", "name": "x", "path": "good", "input_shape": [0]}, 400, "invalid_input", ["input_shape"]),
        ({"framework": "onnx", "name": "x", "path": "good", "watch": 1}, 400, "invalid_input", ["watch:"]),
        ({"framework": "onnx", "name": "x", "path": "good", "version_policy": [0]}, 400, "invalid_input", ["[1, 3]"]),
        ({"framework": "onnx", "name": "x", "path": "good", "quantized": True}, 400, "invalid_input", ["a MatMul or"]),
        ({"framework": "onnx", "name": "x", "path": "good", "instances": 0}, 400, "invalid_input", ["instances:"]),
        ({"framework": "onnx", "name": "x", "path": "good", "input_shape": [1, 5]}, 400, "invalid_input", ["[1, 5]"]),
        (
            {"framework": "onnx", "name": "x", "path": "good", "execution_providers": ["CPUU"]},
            400, "invalid_input", ["execution_providers", "CPU"],
        ),
        ({"framework": "pytorch", "name": "x", "path": "good", "dtype": "f8"}, 400, "invalid_input", ["dtype:"]),
        ({"framework": "pytorch", "name": "x", "path": "pickled"}, 400, "invalid_input", ["safetensors"]),
        ({"framework": "pytorch", "name": "x", "path": "empty"}, 400, "invalid_input", ["safetensors"]),
        ({"framework": "pytorch", "name": "x", "path": "nowhere"}, 400, "invalid_input", ["no such"]),
        ({"framework": "onnx", "name": "x", "path": "nowhere"}, 400, "invalid_input", ["no such file or folder"]),
        ({"framework": "onnx", "name": "x", "path": "empty"}, 400, "invalid_input", ["expected a model.onnx"]),
        ({"framework": "onnx", "name": "x", "path": "bad.onnx"}, 400, "invalid_input", ["bad.onnx"]),
        ({"framework": "onnx", "name": "x", "path": "text.txt"}, 400, "invalid_input", ["text.txt"]),
        ({"framework": "onnx", "name": "x", "path": "loop"}, 400, "invalid_input", ["loop"]),
        ({"framework": "onnx", "name": "x", "path": "y" * 5000}, 400, "invalid_input", ["path"]),
        ({"framework": "onnx", "name": "x", "path": "good/" * 2000}, 400, "invalid_input", ["path"]),
        ({"framework": "onnx", "name": "x", "path": "link"}, 403, "forbidden", ["expected a path below models.roots"]),
        ({"framework": "onnx", "name": "x", "path": "link/model.onnx"}, 403, "forbidden", ["models.roots"]),
        ({"framework": "onnx", "name": "x", "path": "../outside/secret"}, 403, "forbidden", ["models.roots"]),
        ({"framework": "onnx", "name": "x", "path": "good/../../outside/secret"}, 403, "forbidden", ["models.roots"]),
        ({"framework": "onnx", "name": "x", "path": "/etc/passwd"}, 403, "forbidden", ["models.roots"]),
        ({"framework": "onnx", "name": "x", "path": "~/x"}, 403, "forbidden", ["models.roots"]),
    ],
)  # fmt: skip
def test_invalid_registration_refused(
    body: dict[str, Any], status: int, code: str, words: list[str], registering: tuple[RunningServer, Path]
) -> None:
    server, roots = registering
    if isinstance(path := body.get("path"), str) and path and path[0] not in "/~":
        body = body | {"path": f"{roots}/{path}"}
    message = assert_refused(server.client.post("/models", json=body), status, code, *words)
    assert len(message) < 12_000
    assert [model["name"] for model in server.client.get("/models").json()["models"]] == ["digits"]
    server.check_log()


@pytest.fixture(scope="module")
def registering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    """A server that refusals leave as it is, and its root."""
    folder = tmp_path_factory.mktemp("registering")
    root = make_roots(folder)
    limits = f'[models]\nroots = ["{root}", "{MODELS}"]\nmax_model_size = "1MiB"\n'
    with serving(folder, limits + DIGITS, needs_torch=True) as server:
        yield server.wait_ready(), root


def test_relative_path_starts_at_config_folder(start: Start, roots: Path) -> None:
    server = start('[models]\nroots = ["./roots"]\n').wait_ready()
    assert register(server, framework="onnx", name="sums", path="./roots/good").status_code == 201
    assert_refused(register(server, framework="onnx", name="x", path="./outside/secret"), 403, "forbidden")


def test_unloaded_model_refuses_until_loaded(own_server: RunningServer) -> None:
    own_server.wait_ready()
    for _ in range(2):
        answer = own_server.client.post("/models/digits/unload")
        assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
        assert answer.json()["inputs"] is None
    refusal = own_server.client.post("/models/digits/infer", json=IMAGE)
    assert_refused(refusal, 503, "unloaded", "POST /models/digits/load loads it again")
    assert own_server.client.get("/health").json()["models"] == {"digits": "unloaded"}
    for version in ({}, {"version": "1"}):
        loaded = own_server.client.post("/models/digits/load", json=version).json()
        assert (loaded["state"], loaded["version_details"]["1"]["loads"]) == ("ready", 2)
    assert own_server.infer("digits", **IMAGE)["output_shape"] == [1]
    assert own_server.client.post("/models/digits/unload", json={"version": "1"}).status_code == 200
    assert own_server.client.post("/models/digits/load", content=b"").status_code == 200


def test_long_management_body_refused(server: RunningServer) -> None:
    for path in ("/models", "/models/float32/load", "/v2/repository/index", "/v2/repository/models/float32/load"):
        answer = server.post(path, b'{"framework": "onnx"}'.ljust(65 * 1024))
        assert answer.status_code == 413
        assert "the limit of management requests, 65536 bytes" in answer.text


def test_load_of_unknown_model_refused(server: RunningServer) -> None:
    for verb in ("load", "unload"):
        assert_refused(server.client.post(f"/models/none/{verb}"), 404, "model_not_found", '"none"')
        for body, code, words in (
            ({"version": 1}, "invalid_input", "version:"),
            ({"versoin": "1"}, "unknown_field", 'did you mean "version"?'),
        ):
            assert_refused(server.client.post(f"/models/float32/{verb}", json=body), 400, code, words)
        answer = server.client.post(f"/models/float32/{verb}", json={"version": "2"})
        assert_refused(answer, 404, "version_not_found", 'no version "2"; there is 1')
    assert server.infer("float32", input_data=[1])["output_data"] == [1]


def test_failed_load_reported_and_repeated(start: Start, tmp_path: Path) -> None:
    server = start(onnx_entries(tmp_path, {"sums": onnx_graphs.add()})).wait_ready()
    file = tmp_path / "sums" / "model.onnx"
    content = file.read_bytes()
    server.client.post("/models/sums/unload")
    file.write_bytes(content[:50])
    assert_refused(server.client.post("/models/sums/load"), 503, "model_failed", '"sums" failed to load')
    model = server.client.get("/models/sums").json()
    assert model["state"] == "failed"
    assert "model.onnx" in model["reason"]
    inputs = {"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]}}
    answer = server.client.post("/models/sums/infer", json=inputs)
    assert_refused(answer, 503, "model_failed", "its load is retried in", "or by POST /models/sums/load")
    file.write_bytes(content)
    assert server.client.post("/models/sums/load").json()["state"] == "ready"
    assert server.infer("sums", **inputs)["outputs"]["sum"]["data"] == [[2, 3, 4, 5]]


def test_unload_waits_for_requests_in_flight(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    server = start(entry, gated=True).wait_ready()
    question = {"input_data": [1, 2, 3, 4]}
    with (
        ThreadPoolExecutor(3) as pool,
        httpx.Client(base_url=server.url, timeout=WAIT_S, verify=False) as other,
        gate.closed(),
    ):
        asked = [pool.submit(other.post, "/models/slow/infer", json=question) for _ in range(2)]
        wait_for_inflight(server, 2)
        unload = pool.submit(other.post, "/models/slow/unload")
        wait_until(lambda: server.client.get("/models/slow").json()["state"] == "draining")
        refusal = server.client.post("/models/slow/infer", json=question)
        assert_refused(refusal, 503, "unloaded", "was unloaded")
        assert not unload.done()
        gate.open()
        assert unload.result().status_code == 200
        assert server.inflight("slow") == 0
        assert [answer.result().status_code for answer in asked] == [200, 200]


@pytest.mark.extended
def test_unload_under_load_loses_no_response(own_server: RunningServer) -> None:
    """Eight callers, and one that unloads and loads all the while: each answer is a 200 or an honest 503."""
    own_server.wait_ready()
    stop = threading.Event()
    outcomes: list[tuple[int, str]] = []

    def hammer() -> None:
        with httpx.Client(base_url=own_server.url, timeout=WAIT_S, verify=False) as client:
            while not stop.is_set():
                answer = client.post("/models/digits/infer", json=IMAGE)
                body = answer.json()
                outcomes.append((answer.status_code, body["error"]["code"] if "error" in body else ""))
                assert answer.status_code != 200 or body["output_shape"] == [1]

    def wait_for_more(outcome: tuple[int, str], count: int) -> None:
        wanted = outcomes.count(outcome) + count
        wait_until(lambda: outcomes.count(outcome) >= wanted or any(caller.done() for caller in callers))

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(hammer) for _ in range(8)]
        for _ in range(10):
            wait_for_more((200, ""), 20)
            unloaded = own_server.client.post("/models/digits/unload")
            assert (unloaded.status_code, unloaded.json()["requests"]["inflight"]) == (200, 0)
            wait_for_more((503, "unloaded"), 1)
            assert own_server.client.post("/models/digits/load").status_code == 200
        stop.set()
        for caller in callers:
            caller.result()
    assert set(outcomes) == {(200, ""), (503, "unloaded")} | (set(outcomes) & {(503, "loading")})
    assert sum(status == 200 for status, _ in outcomes) > 100
    assert own_server.sample("roundhouse_model_loads_total", model="digits") == 11


@pytest.mark.extended
def test_concurrent_loads_and_deletes(own_server: RunningServer, roots: Path) -> None:
    own_server.wait_ready()
    entry = {"framework": "onnx", "name": "sums", "path": str(roots / "good")}
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=own_server.url, timeout=WAIT_S, verify=False) as client:
        added = [pool.submit(client.post, "/models", json=entry) for _ in range(8)]
        assert sorted(answer.result().status_code for answer in added) == [201] + [409] * 7
        calls = [
            pool.submit(client.request, method, "/models/sums" + verb)
            for method, verb in [("POST", "/load"), ("POST", "/unload"), ("GET", ""), ("DELETE", "")] * 4
        ]
        assert {answer.result().status_code for answer in calls} <= {200, 404, 503}
    assert [model["name"] for model in own_server.client.get("/models").json()["models"]] == ["digits"]


@pytest.mark.parametrize(("framework", "name"), [("pytorch", "minilm"), ("onnx", "minilm-onnx")])
def test_registration_over_size_limit_refused(
    framework: str, name: str, registering: tuple[RunningServer, Path]
) -> None:
    server, _ = registering
    answer = register(server, framework=framework, name=name, path=str(MODELS / name))
    message = assert_refused(
        answer, 400, "invalid_input", "expected at most models.max_model_size = 1 MiB of weights, got"
    )
    assert re.search(r"8[0-9](\.\d+)? ?M", message)
