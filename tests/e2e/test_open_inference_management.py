"""Management below /v2, by Triton's own clients and by plain HTTP."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.app.protocols.open_inference.messages import check_message
from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, serving, wait_until
from tests.e2e.triton_clients import KINDS, triton_client
from tests.support.models import onnx_costly_graphs, onnx_graphs

EXTENSIONS = {"binary_tensor_data", "classification", "model_repository", "model_configuration", "statistics"}


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    with triton_client(server, request.param) as client:
        yield client


def refusal(status: int, *words: str) -> Any:
    """Expect the error that Triton's client raises, with this status and all these words."""
    pattern = rf"(?s)^\[{status}\]" + "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(InferenceServerException, match=pattern)


def states(client: Any, model: str) -> dict[str, str]:
    return {each["version"]: each["state"] for each in client.get_model_repository_index() if each["name"] == model}


class TestDescriptions:
    def test_server_metadata(self, client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        metadata = client.get_server_metadata()
        assert metadata.keys() == {"name", "version", "extensions"}
        assert metadata["name"] == "roundhouse"
        assert set(metadata["extensions"]) >= EXTENSIONS

    def test_model_metadata_and_config(self, client: Any, server: RunningServer) -> None:
        models = server.client.get("/models").json()["models"]
        for model in models:
            name = model["name"]
            assert client.is_model_ready(name)
            assert client.is_model_ready(name, "1")
            metadata, config = client.get_model_metadata(name), client.get_model_config(name)
            assert client.get_model_metadata(name, "1") == metadata
            assert client.get_model_config(name, "1") == config
            assert (metadata["name"], metadata["versions"]) == (name, ["1"])
            assert metadata["platform"] == {"onnx": "onnxruntime_onnx", "pytorch": "pytorch"}[model["framework"]]
            check_message("ModelMetadataResponse", metadata)
            check_message("ModelConfig", config)
        index = client.get_model_repository_index()
        assert index == [{"name": m["name"], "version": "1", "state": "READY", "reason": ""} for m in models]

    def test_metadata_suffices_for_request(self, client: Any) -> None:
        (image,) = client.get_model_metadata("digits")["inputs"]
        assert (image["datatype"], image["shape"]) == ("FP32", [-1, 64])
        config = client.get_model_config("digits")
        assert config["max_batch_size"] == 32
        assert [each["dims"] for each in config["input"]] == [[64]]
        tensor = tritonclient.http.InferInput(image["name"], [3, *config["input"][0]["dims"]], image["datatype"])
        tensor.set_data_from_numpy(np.zeros((3, 64), np.float32))
        outputs = client.get_model_metadata("digits")["outputs"]
        answer = client.infer("digits", [tensor])
        for output in outputs:
            assert len(answer.as_numpy(output["name"])) == 3

    def test_unbatched_model_has_full_shapes(self, client: Any) -> None:
        config = client.get_model_config("fixed")
        assert config["max_batch_size"] == 0
        assert [each["dims"] for each in config["input"]] == [[2, 3]]
        assert "dynamic_batching" not in config

    def test_metadata_of_text_models(self, client: Any) -> None:
        for name, first_input, output in (
            ("minilm", "text", {"name": "embeddings", "datatype": "FP32", "shape": [-1, 384]}),
            ("classify", "text", {"name": "scores", "datatype": "FP32", "shape": [-1, 3]}),
            ("tiny-llama", "text_input", {"name": "text_output", "datatype": "BYTES", "shape": [-1]}),
        ):
            metadata = client.get_model_metadata(name)
            assert metadata["inputs"][0]["name"] == first_input
            assert metadata["outputs"] == [output]
        assert client.get_model_config("tiny-llama")["model_transaction_policy"] == {"decoupled": True}

    def test_unknown_model_refused(self, client: Any) -> None:
        for ask in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with refusal(404, "digit", "digits"):
                ask("digit")
            with refusal(404, "digits", "no version .7.", "1"):
                ask("digits", "7")
        assert not client.is_model_ready("digit")
        assert not client.is_model_ready("digits", "7")

    def test_unsupported_extensions_refused(self, client: Any) -> None:
        for ask in (
            client.get_trace_settings,
            client.get_log_settings,
            client.get_system_shared_memory_status,
            client.unregister_system_shared_memory,
            client.unregister_cuda_shared_memory,
            lambda: client.get_trace_settings("digits"),
            lambda: client.register_system_shared_memory("region", "/key", 8),
            lambda: client.get_cuda_shared_memory_status("region"),
            lambda: client.update_log_settings({"log_info": True}),
        ):
            with refusal(501, "extension", "statistics"):
                ask()


class TestStatistics:
    def test_statistics_count_requests(self, client: Any, server: RunningServer) -> None:
        def of_digits() -> Any:
            (statistics,) = client.get_inference_statistics("digits", "1")["model_stats"]
            return statistics

        before, before_ms = of_digits(), time.time() * 1000
        server.infer("digits", input_data=[[0] * 64] * 3)
        server.client.post("/models/digits/infer", json={"input_data": "nothing"})
        after = of_digits()
        check_message("ModelStatisticsResponse", {"model_stats": [after]})
        assert after["inference_count"] - before["inference_count"] == 3
        assert after["execution_count"] - before["execution_count"] == 1
        assert before_ms - 1000 < after["last_inference"] < time.time() * 1000 + 1000
        for part, count in {
            "success": 1, "fail": 1, "queue": 1, "compute_input": 1, "compute_infer": 1, "compute_output": 1,
            "cache_hit": 0, "cache_miss": 0,
        }.items():  # fmt: skip
            one, other = before["inference_stats"][part], after["inference_stats"][part]
            assert other["count"] - one["count"] == count, part
            assert (other["ns"] > one["ns"]) == (count > 0), part
        nothing = {"count": 0, "ns": 0}
        one, other = (
            {b["batch_size"]: b["compute_infer"] for b in s["batch_stats"]}.get(3, nothing) for s in (before, after)
        )
        assert other["count"] - one["count"] == 1
        assert other["ns"] > one["ns"]
        (memory,) = after["memory_usage"]
        assert memory["type"] == "CPU"
        assert memory["byte_size"] > 0

    def test_statistics_of_every_version(self, client: Any, server: RunningServer) -> None:
        statistics = client.get_inference_statistics()["model_stats"]
        models = server.client.get("/models").json()["models"]
        assert [(each["name"], each["version"]) for each in statistics] == [(m["name"], "1") for m in models]
        assert client.get_inference_statistics("digits")["model_stats"][0]["name"] == "digits"

    def test_statistics_count_texts_and_steps(self, client: Any, server: RunningServer) -> None:
        def counts() -> tuple[int, int]:
            (statistics,) = client.get_inference_statistics("tiny-llama")["model_stats"]
            return statistics["inference_count"], statistics["execution_count"]

        texts, steps = counts()
        server.infer("tiny-llama", prompt="Once", max_tokens=6, temperature=0, ignore_eos=True)
        assert counts() == (texts + 1, steps + 6)

    def test_statistics_count_cache_hits(self, start: Start) -> None:
        server = start(DIGITS + "cache = true\n").wait_ready()
        for _ in range(3):
            server.infer("digits", input_data=[0] * 64)
        with triton_client(server, "http") as client:
            (statistics,) = client.get_inference_statistics("digits")["model_stats"]
            config = client.get_model_config("digits")
        counts = {part: each["count"] for part, each in statistics["inference_stats"].items()}
        assert (counts["success"], counts["cache_hit"], counts["cache_miss"]) == (3, 2, 1)
        assert (counts["compute_infer"], statistics["inference_count"], statistics["execution_count"]) == (1, 1, 1)
        assert statistics["inference_stats"]["cache_hit"]["ns"] > 0
        assert config["response_cache"] == {"enable": True}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server whose one model is loaded and unloaded by the tests."""
    with serving(tmp_path_factory.mktemp("repository"), DIGITS) as server:
        yield server.wait_ready()


@pytest.fixture(params=KINDS)
def owner(request: pytest.FixtureRequest, repository: RunningServer) -> Iterator[Any]:
    """Return a client of that server."""
    with triton_client(repository, request.param) as client:
        yield client


class TestRepository:
    def test_model_unloaded_and_loaded(self, owner: Any) -> None:
        owner.unload_model("digits", unload_dependents=True)
        assert not owner.is_model_ready("digits")
        assert states(owner, "digits") == {"1": "UNAVAILABLE"}
        for ask in (owner.get_model_metadata, owner.get_model_config):
            with refusal(503, "unloaded"):
                ask("digits")
        # The counters outlive the unload.
        assert owner.get_inference_statistics("digits", "1")["model_stats"][0]["memory_usage"] == []
        owner.load_model("digits")
        assert owner.is_model_ready("digits")
        assert states(owner, "digits") == {"1": "READY"}
        owner.load_model("digits")

    def test_invalid_orders_refused(self, owner: Any) -> None:
        with refusal(404, "digit"):
            owner.load_model("digit")
        with refusal(404, "digit"):
            owner.unload_model("digit")
        with refusal(501, "parameters.config"):
            owner.load_model("digits", config="{}")
        assert owner.is_model_ready("digits")

    def test_body_and_content_type_optional(self, repository: RunningServer) -> None:
        post = repository.client.post
        index = post("/v2/repository/index").json()
        assert index == [{"name": "digits", "version": "1", "state": "READY", "reason": ""}]
        for body in (b'{"ready": true}', b'{"ready": false, "more": 1}', b"{}"):
            answer = httpx.post(f"{repository.url}/v2/repository/index", content=body)
            assert (answer.status_code, answer.json()) == (200, index)
        for verb in ("load", "unload", "load"):
            answer = post(f"/v2/repository/models/digits/{verb}")
            assert (answer.status_code, answer.json()) == (200, {})
        assert post("/v2/repository/models/digits/load", json={"parameters": {"anything": [1]}}).status_code == 200

    def test_index_of_ready_models(self, repository: RunningServer, owner: Any) -> None:
        owner.unload_model("digits")
        assert repository.client.post("/v2/repository/index", json={"ready": True}).json() == []
        owner.load_model("digits")
        assert len(repository.client.post("/v2/repository/index", json={"ready": True}).json()) == 1

    @pytest.mark.parametrize(
        ("path", "body", "words"),
        [
            ("index", b'{"ready": 1}', "ready: expected a boolean, got 1"),
            ("index", b"[]", "body: expected a JSON object"),
            ("index", b"{", "not valid JSON"),
            ("models/digits/load", b'{"parameters": []}', "parameters: expected an object"),
            ("models/digits/unload", b'{"parameters": "all"}', "parameters: expected an object"),
            ("models/digits/unload", b"1", "body: expected a JSON object"),
        ],
    )
    def test_invalid_bodies_refused(self, path: str, body: bytes, words: str, repository: RunningServer) -> None:
        answer = repository.post(f"/v2/repository/{path}", body)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]
        assert repository.client.get("/v2/models/digits/ready").status_code == 200

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    def test_cross_origin_order_refused(self, kind: str, repository: RunningServer) -> None:
        for path in ("index", "models/digits/load", "models/digits/unload"):
            answer = repository.post(f"/v2/repository/{path}", b"{}", **{"content-type": kind})
            assert answer.status_code == 415, answer.text
        assert repository.client.get("/v2/models/digits/ready").status_code == 200


def test_versions(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for version in (1, 2, 3):
        (folder / str(version)).mkdir(parents=True)
        onnx_graphs.save(onnx_costly_graphs.weighted(version, 0.1), folder / str(version))
    entry = f'[[models.onnx_models]]\nname = "m"\npath = "{folder}"\nversion_policy = [1, 3]\n'
    server = start(entry).wait_ready()
    for asked in ("1", "3", "3"):
        question = {"input_data": [1] * onnx_costly_graphs.side(0.1)}
        assert server.client.post(f"/models/m/versions/{asked}/infer", json=question).status_code == 200
    with triton_client(server, "http") as client:
        assert client.get_model_metadata("m")["versions"] == ["1", "3"]
        assert client.get_model_metadata("m", "1")["versions"] == ["1"]
        assert [client.is_model_ready("m", version) for version in ("1", "2", "3")] == [True, False, True]
        assert states(client, "m") == {"1": "READY", "2": "UNAVAILABLE", "3": "READY"}
        assert client.get_model_config("m")["version_policy"] == {"specific": {"versions": [1, 3]}}
        statistics = client.get_inference_statistics("m")["model_stats"]
        assert {each["version"]: each["execution_count"] for each in statistics} == {"1": 1, "3": 2}
        assert {each["version"]: each["inference_stats"]["success"]["count"] for each in statistics} == {"1": 1, "3": 2}
        assert client.get_inference_statistics("m", "3")["model_stats"] == statistics[1:]


def test_metadata_request_loads_lazy_model(start: Start, tmp_path: Path) -> None:
    config = onnx_entries(tmp_path, {"late": onnx_graphs.free("n")}) + 'load = "lazy"\n'
    server = start(config).wait_ready()
    with triton_client(server, "http") as client:
        assert client.is_model_ready("late")
        (entry,) = client.get_model_repository_index()
        assert (entry["state"], "not in memory" in entry["reason"]) == ("READY", True)
        assert client.get_inference_statistics("late")["model_stats"][0]["memory_usage"] == []
        assert server.client.get("/models/late").json()["state"] == "registered", "no request needed it until now"
        assert client.get_model_metadata("late")["inputs"][0]["shape"] == [-1, 3]
        assert server.client.get("/models/late").json()["state"] == "ready"
        assert client.get_model_repository_index()[0]["reason"] == ""


def test_server_that_is_not_ready(start: Start) -> None:
    missing = '[[models.onnx_models]]\nname = "missing"\npath = "./nowhere"\n'
    server = start(missing + DIGITS)
    with triton_client(server, "http") as client:
        wait_until(lambda: client.is_model_ready("digits"))
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("missing")
        assert states(client, "missing") == {"1": "UNAVAILABLE"}
        with refusal(503, "no such file or folder"):
            client.load_model("missing")
    answer = server.client.get("/v2/health/ready")
    assert (answer.status_code, answer.json().keys()) == (503, {"error"})
    assert "missing" in answer.json()["error"]
    assert "no such file" in server.client.get("/v2/models/missing/ready").json()["error"]


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models", "/v2/models/digits/nothing", "/v2/repository"])
def test_unknown_paths_refused(path: str, server: RunningServer) -> None:
    answer = server.client.get(path)
    assert answer.status_code == 404
    assert "there is nothing at" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/models/digits/ready", "/v2/models/nobody/ready", "/metrics"])
def test_response_arrives_in_one_piece(path: str, server: RunningServer) -> None:
    """Triton's asyncio client reuses a connection after one read of the whole response."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for _ in range(20):
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head, _, body = connection.recv(2**20).partition(b"\r\n\r\n")
            (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if path != "/metrics":  # which is long
                assert len(body) == int(length.split()[1])
            while len(body) < int(length.split()[1]):
                body += connection.recv(2**20)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", "GET"),
        ("POST", "/v2/health/ready", "GET"),
        ("GET", "/v2/repository/index", "POST"),
        ("DELETE", "/v2/models/digits", "GET"),
    ],
)
def test_wrong_methods_refused(method: str, path: str, allowed: str, server: RunningServer) -> None:
    answer = server.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert allowed in answer.json()["error"]


def test_fields_for_other_clients(server: RunningServer) -> None:
    for path, body in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/digits/ready", {"name": "digits", "ready": True}),
        ("/v2/models/digits/versions/1/ready", {"name": "digits", "ready": True}),
    ):
        assert server.client.get(path).json() == body
