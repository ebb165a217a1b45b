"""Descriptions and statistics below /v2, by Triton's own clients and by plain HTTP."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from tests.app.protocols.open_inference.messages import check_message
from tests.e2e.configs import DIGITS
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer
from tests.e2e.triton_clients import KINDS, refusal, triton_client

EXTENSIONS = {"binary_tensor_data", "classification", "model_repository", "model_configuration", "statistics"}


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    with triton_client(server, request.param) as client:
        yield client


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
            assert metadata["outputs"][0] == output
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
        assert before_ms - 60_000 < after["last_inference"] < time.time() * 1000 + 1000
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


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models", "/v2/models/org/digits/nothing", "/v2/repository"])
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
        ("POST", "/v2", "GET, HEAD"),
        ("POST", "/v2/health/ready", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("DELETE", "/v2/models/digits", "GET, HEAD"),
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
