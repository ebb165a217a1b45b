"""An ONNX model behind MLServer, in MLServer's own environment.

`python -m tools.bench.peers.mlserver_runtime MODEL PORT`. The model runs in the server's own process: in a worker
process, which is its default, it is slower on one core.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import onnxruntime as ort
from mlserver import MLModel
from mlserver.cli import main
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

_SETTINGS = {
    "debug": False,
    "host": "127.0.0.1",
    "grpc_port": 0,  # any free one; it cannot be left out
    "metrics_endpoint": None,
    "parallel_workers": 0,
}


class OnnxRuntime(MLModel):  # type: ignore[misc]
    """A graph of one input and one output, by the V2 protocol."""

    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(self.settings.parameters.uri, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = NumpyCodec.decode_input(payload.inputs[0])
        output = self._session.run(None, {payload.inputs[0].name: tensor})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", output)])


def serve(model: str, port: int) -> None:
    """Write the folder of `mlserver start`, and start it."""
    implementation = f"tools.bench.peers.mlserver_runtime.{OnnxRuntime.__name__}"
    entry = {"name": "vector", "implementation": implementation, "parameters": {"uri": os.path.abspath(model)}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "settings.json").write_text(json.dumps(_SETTINGS | {"http_port": port}), encoding="utf-8")
        Path(folder, "model-settings.json").write_text(json.dumps(entry), encoding="utf-8")
        sys.argv = ["mlserver", "start", folder]
        main()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
