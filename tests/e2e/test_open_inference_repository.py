"""Models and versions below /v2 that load, unload or fail, by Triton's own clients and by plain HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, serving, wait_until
from tests.e2e.triton_clients import KINDS, model_states, refusal, triton_client
from tests.support.models import onnx_costly_graphs, onnx_graphs


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
        assert model_states(owner, "digits") == {"1": "UNAVAILABLE"}
        for ask in (owner.get_model_metadata, owner.get_model_config):
            with refusal(503, "unloaded"):
                ask("digits")
        # The counters outlive the unload.
        assert owner.get_inference_statistics("digits", "1")["model_stats"][0]["memory_usage"] == []
        owner.load_model("digits")
        assert owner.is_model_ready("digits")
        assert model_states(owner, "digits") == {"1": "READY"}
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
        assert model_states(client, "m") == {"1": "READY", "2": "UNAVAILABLE", "3": "READY"}
        assert client.get_model_config("m")["version_policy"] == {"specific": {"versions": [1, 3]}}
        statistics = client.get_inference_statistics("m")["model_stats"]
        assert {each["version"]: each["execution_count"] for each in statistics} == {"1": 1, "3": 2}
        assert {each["version"]: each["inference_stats"]["success"]["count"] for each in statistics} == {"1": 1, "3": 2}
        assert client.get_inference_statistics("m", "3")["model_stats"] == statistics[1:]


@pytest.mark.extended
def test_metadata_by_get_loads_no_model(start: Start, tmp_path: Path) -> None:
    config = onnx_entries(tmp_path, {"late": onnx_graphs.free("n")}) + 'load = "lazy"\n'
    server = start(config).wait_ready()
    with triton_client(server, "http") as client:
        assert client.is_model_ready("late")
        (entry,) = client.get_model_repository_index()
        assert (entry["state"], "not in memory" in entry["reason"]) == ("READY", True)
        assert client.get_inference_statistics("late")["model_stats"][0]["memory_usage"] == []
        assert server.client.get("/models/late").json()["state"] == "registered", "no request needed it until now"
        for describe in (client.get_model_metadata, client.get_model_config):
            with refusal(503, "GET loads no model", "/v2/repository/models/late/load"):
                describe("late")
            assert server.client.get("/models/late").json()["state"] == "registered"
        client.load_model("late")
        assert client.get_model_metadata("late")["inputs"][0]["shape"] == [-1, 3]
        assert server.client.get("/models/late").json()["state"] == "ready"
        assert client.get_model_repository_index()[0]["reason"] == ""


@pytest.mark.extended
def test_server_that_is_not_ready(start: Start) -> None:
    missing = '[[models.onnx_models]]\nname = "missing"\npath = "./nowhere"\n'
    server = start(missing + DIGITS)
    with triton_client(server, "http") as client:
        wait_until(lambda: client.is_model_ready("digits"))
        assert client.is_server_live()
        assert not client.is_server_ready()
        # A load that has just failed is not retried yet; then a request may load the model.
        with refusal(503, "no such file or folder"):
            client.load_model("missing")
        assert not client.is_model_ready("missing")
        assert model_states(client, "missing") == {"1": "UNAVAILABLE"}
    answer = server.client.get("/v2/health/ready")
    assert (answer.status_code, answer.json().keys()) == (503, {"error"})
    assert "missing" in answer.json()["error"]
    assert "no such file" in server.client.get("/v2/models/missing/ready").json()["error"]
