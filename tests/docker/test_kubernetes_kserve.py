"""The ServingRuntimes of KServe: schemas, and containers that serve a model of the storage under its service's name."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import tritonclient.grpc

from tests.docker.container_check import DIGIT
from tests.docker.kubelet import Kubelet
from tests.docker.manifests import KUBERNETES, read_documents, validate
from tests.e2e.server import MODELS, ROOT, RunningServer

pytestmark = pytest.mark.extended

Start = Callable[[str], Kubelet]
SERVICE = "first-digits"
"""The name of the InferenceService."""
HOST = f"{SERVICE}-predictor.models.example.org"
KEY = "a-key-of-the-environment"
RUNTIMES = sorted(path.stem for path in (KUBERNETES / "kserve").glob("*.yaml"))
DEFAULT_GRACE_S = 30
"""Seconds that Kubernetes gives a pod without a grace period of its own."""


def runtime(name: str) -> dict[str, Any]:
    """Return a ServingRuntime whose placeholders KServe has replaced."""
    text = (KUBERNETES / f"kserve/{name}.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"{{.*?}}", text)) <= {"{{.Name}}"}
    (found,) = read_documents(text.replace("{{.Name}}", SERVICE))
    return found


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that makes the pod of a ServingRuntime, with the mount that KServe adds: /mnt/models."""

    def pod(name: str) -> Kubelet:
        spec = runtime(name)["spec"]
        (container,) = spec["containers"]
        mounts = [*container["volumeMounts"], {"name": "storage", "mountPath": "/mnt/models", "readOnly": True}]
        volumes = [*spec["volumes"], {"name": "storage", "emptyDir": {}}]
        pod = {"containers": [container | {"volumeMounts": mounts}], "volumes": volumes}
        return Kubelet(pod, {"roundhouse": {"api-key": KEY.encode()}}, tmp_path, ())

    return pod


def test_runtimes_cover_formats_and_protocols() -> None:
    offered = {
        (form["name"], protocol)
        for name in RUNTIMES
        for form in runtime(name)["spec"]["supportedModelFormats"]
        for protocol in runtime(name)["spec"]["protocolVersions"]
    }
    formats = {(form, protocol) for form in ("onnx", "huggingface") for protocol in ("v2", "grpc-v2")}
    assert offered == formats | {("roundhouse", "v2")}


@pytest.mark.parametrize("name", RUNTIMES)
def test_runtime_follows_schema_of_kserve(name: str) -> None:
    found = runtime(name)
    validate(found)
    assert found["metadata"]["name"] == f"roundhouse-{name}"
    (container,) = found["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["runAsNonRoot"]
    environ = {each["name"]: each.get("value") for each in container["env"]}
    assert float(environ["ROUNDHOUSE_SERVER__DRAIN_TIMEOUT_S"]) + 10 <= DEFAULT_GRACE_S
    container["prots"] = []
    with pytest.raises(jsonschema.ValidationError, match="prots"):
        validate(found)


def send_v2(server: RunningServer, path: str, body: object, **headers: str) -> httpx.Response:
    """Send a request as it arrives from KServe's router: with the host of the InferenceService."""
    return server.client.post(f"/v2/{path}", json=body, headers={"host": HOST, **headers})


def digit_tensor() -> dict[str, Any]:
    values = [float(value) for value in DIGIT["input_data"]]
    return {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 64], "data": values}]}


def label_of(answer: httpx.Response) -> object:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}["output_label"]


def test_onnx_runtime_serves_model_over_http(start: Start) -> None:
    pod = start("onnx")
    shutil.copytree(MODELS / "digits", pod.place("/mnt/models"), dirs_exist_ok=True)
    with pod.running() as server:
        assert server.grpc_port == 0
        assert send_v2(server, f"models/{SERVICE}/infer", digit_tensor()).status_code == 401
        answer = send_v2(server, f"models/{SERVICE}/infer", digit_tensor(), authorization=f"Bearer {KEY}")
        assert label_of(answer) == [3]
        names = [model["name"] for model in server.client.get("/models", headers={"x-api-key": KEY}).json()["models"]]
        assert names == [SERVICE]
        pod.stop(DIGIT, f"/models/{SERVICE}/infer", KEY)


def test_onnx_runtime_serves_model_over_grpc(start: Start) -> None:
    pod = start("onnx-grpc")
    shutil.copytree(MODELS / "digits", pod.place("/mnt/models"), dirs_exist_ok=True)
    with pod.running() as server:
        client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        image = tritonclient.grpc.InferInput("image", [1, 64], "FP32")
        image.set_data_from_numpy(np.array([DIGIT["input_data"]], np.float32))
        result = client.infer(SERVICE, [image], headers={"x-api-key": KEY})
        assert result.as_numpy("output_label").tolist() == [3]
        client.close()


@pytest.mark.parametrize("name", ["huggingface", "huggingface-grpc"])
def test_huggingface_runtime_serves_language_model(name: str, start: Start) -> None:
    pod = start(name)
    shutil.copytree(MODELS / "tiny-llama", pod.place("/mnt/models"), dirs_exist_ok=True)
    with pod.running(needs_torch=True) as server:
        body = {"text_input": "A list is", "parameters": {"max_tokens": 4, "temperature": 0}}
        answer = send_v2(server, f"models/{SERVICE}/generate", body, authorization=f"Bearer {KEY}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["num_output_tokens"] == 4
        assert (server.grpc_port == 0) == (name == "huggingface")


def test_multi_model_runtime_loads_and_unloads(start: Start) -> None:
    """The storage has the config; a caller with the scope manage unloads a model and loads it again."""
    pod = start("multi-model")
    storage = pod.place("/mnt/models")
    entries = (f'[[models.onnx_models]]\nname = "{name}"\npath = "{name}"\n' for name in ("first", "second"))
    # The variables of the runtime override the file of the storage.
    (storage / "config.toml").write_text('[auth]\nmode = "off"\n' + "".join(entries), encoding="utf-8")
    for name in ("first", "second"):
        shutil.copytree(MODELS / "digits", storage / name)
    owner = {"authorization": f"Bearer {KEY}"}
    with pod.running() as server:
        assert send_v2(server, "models/first/infer", digit_tensor()).status_code == 401
        assert send_v2(server, "repository/models/first/unload", {}, **owner).status_code == 200
        assert send_v2(server, "models/first/infer", digit_tensor(), **owner).status_code == 503
        assert label_of(send_v2(server, "models/second/infer", digit_tensor(), **owner)) == [3]
        assert send_v2(server, "repository/models/first/load", {}, **owner).status_code == 200
        assert label_of(send_v2(server, "models/first/infer", digit_tensor(), **owner)) == [3]
        # Models that the config does not name cannot be loaded: KServe's TrainedModel needs that.
        assert send_v2(server, "repository/models/third/load", {}, **owner).status_code == 404
        index = send_v2(server, "repository/index", {}, **owner).json()
        assert {(model["name"], model["state"]) for model in index} == {("first", "READY"), ("second", "READY")}


def test_manual_shows_valid_service_and_runtimes() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (service,) = read_documents(re.findall(r"```yaml\n(apiVersion: serving.*?)```", page, flags=re.DOTALL)[0])
    validate(service)
    model = service["spec"]["predictor"]["model"]
    used = runtime(model["runtime"].removeprefix("roundhouse-"))["spec"]
    assert model["modelFormat"]["name"] in [form["name"] for form in used["supportedModelFormats"]]
    assert model["protocolVersion"] in used["protocolVersions"]
    model["storageURI"] = model.pop("storageUri")
    with pytest.raises(jsonschema.ValidationError, match="storageURI"):
        validate(service)
    assert all(f"kserve/{name}.yaml" in page for name in RUNTIMES)
