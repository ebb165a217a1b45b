"""Names with a slash and aliases, where several processes answer: workers, engine processes, gRPC, the command line."""

import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from app.cli.commands import main
from tests.e2e.conftest import Start
from tests.e2e.server import GRPC_PORT, free_port
from tests.support.models.onnx_graphs import identity, save

pytestmark = pytest.mark.extended
NUMBERS = {"input_data": [1.0, 2.0]}


def test_workers_and_processes_serve_names_with_slash(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = save(identity(), tmp_path / "model.onnx")
    entry = f'[[models.onnx_models]]\npath = "{graph}"\n'
    config = f'{entry}name = "org/vector"\naliases = ["short", "gpt/4o"]\nisolation = "process"\n'
    config += f'{entry}name = "other"\n[server]\nworkers = 2\n[models]\nroots = ["{tmp_path}"]\n'
    server = start(config, **{GRPC_PORT: str(free_port())}).wait_ready()
    for name in ("org/vector", "org%2Fvector", "short", "gpt/4o", "gpt%2F4o"):
        answered = server.client.post(f"/models/{name}/infer", json=NUMBERS).json()
        assert answered["model_name"] == name.replace("%2F", "/")
        assert server.client.get(f"/models/{name}").json()["name"] == "org/vector"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        for name in ("org/vector", "gpt/4o"):
            tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2])
            tensor.contents.fp32_contents.extend([1.0, 2.0])
            reply = stub.ModelInfer(messages.ModelInferRequest(model_name=name, inputs=[tensor]))
            assert reply.model_name == name
            assert stub.ModelReady(messages.ModelReadyRequest(name=name)).ready
        with pytest.raises(grpc.RpcError, match=r"did you mean .*org/vector"):
            stub.ModelMetadata(messages.ModelMetadataRequest(name="Vector"))
    for name in ("org/vector", "gpt/4o"):
        assert main(["infer", name, "--url", server.url, "--data", "[1, 2]"]) == 0
        assert json.loads(capsys.readouterr().out)["model_name"] == name
    # A name of a removed model becomes the alias of another one, in every worker.
    assert server.client.delete("/models/short").json() == {"deleted": "org/vector"}
    body = {"framework": "onnx", "name": "new/vector", "path": str(graph), "aliases": ["org/vector"]}
    assert server.client.post("/models", json=body).status_code == 201
    for _ in range(8):
        # A connection each, so that both workers answer.
        assert httpx.post(f"{server.url}/models/org/vector/infer", json=NUMBERS).status_code == 200
        assert httpx.post(f"{server.url}/models/short/infer", json=NUMBERS).status_code == 404
