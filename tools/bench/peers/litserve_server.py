"""A model behind LitServe, in LitServe's own environment.

`python -m tools.bench.peers.litserve_server vector|onnx|torch MODEL PORT`: the vectors one by one, the texts in
batches of 32.
"""

import sys
from typing import Any

import litserve as ls  # type: ignore[import-not-found]
import numpy as np
import onnxruntime as ort

from tools.bench.shared.encoders import Encoder, load_encoder

_BATCH_SIZE = 32
_BATCH_TIMEOUT_S = 0.01


class VectorApi(ls.LitAPI):  # type: ignore[misc]
    """`{"input_data": [numbers]}` → `{"output_data": [[numbers]]}`."""

    def __init__(self, model: str) -> None:
        super().__init__(api_path="/infer")
        self._file = model

    def setup(self, device: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(self._file, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        return np.array(request["input_data"], dtype=np.float32)

    def predict(self, vector: np.ndarray) -> Any:
        return self._session.run(None, {"x": vector.reshape(1, -1)})[0]

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output_data": output.tolist()}


class TextApi(ls.LitAPI):  # type: ignore[misc]
    """`{"text": "…"}` → `{"embeddings": [[numbers]]}`."""

    def __init__(self, framework: str, model: str) -> None:
        super().__init__(max_batch_size=_BATCH_SIZE, batch_timeout=_BATCH_TIMEOUT_S, api_path="/infer")
        self._framework = framework
        self._folder = model
        self._encoder: Encoder

    def setup(self, device: str) -> None:
        self._encoder = load_encoder(self._framework, self._folder, threads=1)

    def decode_request(self, request: dict[str, Any]) -> str:
        text: str = request["text"]
        return text

    def batch(self, texts: list[str]) -> list[str]:
        return texts

    def predict(self, texts: list[str]) -> np.ndarray:
        return self._encoder.embed(self._encoder.tokenize(texts))

    def unbatch(self, embeddings: np.ndarray) -> list[np.ndarray]:
        return list(embeddings)

    def encode_response(self, embedding: np.ndarray) -> dict[str, Any]:
        return {"embeddings": [embedding.tolist()]}


if __name__ == "__main__":
    kind, path, port = sys.argv[1:]
    api = VectorApi(path) if kind == "vector" else TextApi(kind, path)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=int(port), num_api_servers=1, log_level="error", generate_client_file=False)
