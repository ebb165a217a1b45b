"""A server whose models are in a bucket and on a web server: commands, new contents, and missing sources."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hubs import DATA, doubled, entry, files, models_table
from tests.e2e.server import RunningServer, assert_refused, serving, wait_until
from tests.support.s3_server import S3Server, running_s3
from tests.support.web_server import WebServer, trusted_web_server

NUMBERS = [1.0, 2.0, 3.0]
SECRET = "not-to-be-shown"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of S3 with the bucket `models`, and the variables of its clients."""
    with running_s3() as server:
        server.set_environment(monkeypatch)
        server.make_bucket("models", {f"team/small/{name}": content for name, content in files().items()})
        yield server


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A web server with the graph `/models/small.onnx`, whose certificate the clients trust."""
    with trusted_web_server(tmp_path, monkeypatch) as server:
        server.files["/models/small.onnx"] = files()["model.onnx"]
        server.files["/models/small.onnx_data"] = DATA
        yield server


def doubles(server: RunningServer, name: str = "small") -> bool:
    """Return whether the model computes x + x; else it returns x."""
    output = server.infer(name, input_data=NUMBERS)["output_data"]
    assert output in (NUMBERS, [2.0, 4.0, 6.0])
    return bool(output != NUMBERS)


@pytest.mark.extended
@pytest.mark.parametrize("workers", ["1", "2"])
def test_command_serves_model_of_bucket(workers: str, bucket: S3Server, tmp_path: Path) -> None:
    variables = {"ROUNDHOUSE_SERVER__WORKERS": workers, "ROUNDHOUSE_MODELS__CACHE_DIR": str(tmp_path / "cache")}
    with RunningServer(["s3://models/team/small", "--port", "0"], variables) as server:
        assert not doubles(server.wait_ready())
        bucket.client.put_object(Bucket="models", Key="team/small/model.onnx", Body=doubled().SerializeToString())
        assert server.client.post("/models/small/load").status_code == 200
        assert doubles(server)
        assert not [line for line in server.lines if SECRET in line]


@pytest.mark.extended
def test_registration_from_bucket_stays_within_sources(bucket: S3Server, tmp_path: Path) -> None:
    with serving(tmp_path, models_table(tmp_path, '["s3://models/team"]')) as server:
        body = {"framework": "onnx", "name": "small", "path": "s3://models/team/small"}
        assert_refused(server.client.post("/models", json=body | {"path": "s3://models/other"}), 403, "forbidden")
        answer = server.client.post("/models", json=body | {"path": "s3://models/team/none"})
        assert_refused(answer, 400, "invalid_input", "s3://models/team/none")
        assert server.client.post("/models", json=body).status_code == 201
        assert not doubles(server)
        assert not [line for line in server.lines if SECRET in line]


def test_config_serves_graph_of_web_server(web: WebServer, tmp_path: Path) -> None:
    address = f"https://127.0.0.1:{web.port}/models/small.onnx"
    config = models_table(tmp_path) + entry("small", address) + entry("absent", address.replace("small", "absent"))
    with serving(tmp_path, config) as server:
        server.wait_for_log("model ready", model="small")
        assert not doubles(server)
        failed = server.wait_for_log("model failed to load", model="absent")
        assert "absent.onnx: expected an .onnx file, got none" in failed["reason"]
        web.files["/models/small.onnx"] = doubled().SerializeToString()
        assert server.client.post("/models/small/load").status_code == 200
        assert doubles(server)
        (version,) = server.client.get("/models/small").json()["version_details"].values()
        assert (version["path"], version["revision"]) == (address, None)


@pytest.mark.extended
def test_models_are_served_after_sources_end(
    bucket: S3Server, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"https://127.0.0.1:{web.port}/models/small.onnx"
    config = models_table(tmp_path) + entry("small", "s3://models/team/small") + entry("other", address)
    with serving(tmp_path, config) as server:
        server.wait_ready()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    web.faults.statuses = [503] * 1000
    with serving(tmp_path, config) as server:
        server.wait_ready()
        assert not doubles(server)
        assert not doubles(server, "other")
        wait_until(lambda: len(server.events("source does not answer; the cached version is used")) == 2)


@pytest.mark.extended
def test_missing_bucket_fails_only_its_model(bucket: S3Server, tmp_path: Path) -> None:
    absent = entry("absent", "s3://there-is-no-such-bucket/m")
    config = models_table(tmp_path) + absent + entry("small", "s3://models/team/small")
    with serving(tmp_path, config) as server:
        wait_until(lambda: states(server) == {"absent": "failed", "small": "ready"})
        reason = server.client.get("/models/absent").json()["reason"]
        assert "expected a bucket that exists, got HTTP 404; check its name" in reason
        assert not doubles(server)
        assert not [line for line in server.lines if SECRET in line or "Traceback" in line]


def states(server: RunningServer) -> dict[str, str]:
    return {each["name"]: each["state"] for each in server.client.get("/models").json()["models"]}
