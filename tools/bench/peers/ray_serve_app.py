"""The application that a careful user of Ray Serve writes: FastAPI as the ingress, and `serve.batch`.

`python -m tools.bench.peers.ray_serve_app ADDRESS PORT TEXTS TENSORS` deploys it to the cluster at ADDRESS, and ends
when it answers at PORT. TEXTS: the folder of MiniLM (ONNX). TENSORS: the file of an ONNX graph with one input.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
import ray
from fastapi import FastAPI, Response
from pydantic import BaseModel
from ray import serve

_MAX_ROWS = 32
_WAIT_S = 0.002
_CALLS = 256

# Its annotations know functions only, and no methods.
_batch: Callable[..., Callable[[Any], Any]] = serve.batch

texts_app = FastAPI()
tensors_app = FastAPI()


class Text(BaseModel):
    """One text."""

    text: str


class Tensor(BaseModel):
    """A flat tensor."""

    input_data: list[float]


# Above the classes: `serve.ingress` pickles the functions of this module, which is `__main__`.
def _json(answer: dict[str, Any]) -> Response:
    return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=_CALLS,
    ray_actor_options={"num_cpus": 1},
    logging_config={"enable_access_log": False},
)
@serve.ingress(texts_app)
class Texts:
    """Embed texts on one thread, beside the event loop."""

    def __init__(self, folder: str) -> None:
        from tools.bench.shared.encoders import load_encoder

        self._encoder = load_encoder("onnx", folder, 1)

    @texts_app.post("/infer")
    async def infer(self, body: Text) -> Response:
        """Answer a text."""
        return _json({"embeddings": [await self.embed(body.text)]})

    @_batch(max_batch_size=_MAX_ROWS, batch_wait_timeout_s=_WAIT_S)
    async def embed(self, texts: list[str]) -> Any:
        """Return an embedding for each text of a batch."""
        return await asyncio.to_thread(self._embed, texts)

    def _embed(self, texts: list[str]) -> Sequence[Any]:
        return list(self._encoder.embed(self._encoder.tokenize(texts)))


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=_CALLS,
    ray_actor_options={"num_cpus": 1},
    logging_config={"enable_access_log": False},
)
@serve.ingress(tensors_app)
class Tensors:
    """Run an ONNX graph of microseconds, within the event loop: a thread would take longer."""

    def __init__(self, model: str) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    @tensors_app.get("/health")
    async def health(self) -> dict[str, str]:
        """Answer at once."""
        return {"status": "healthy"}

    @tensors_app.post("/infer")
    async def infer(self, body: Tensor) -> Response:
        """Answer a row."""
        return _json({"output_data": [await self.run(body.input_data)]})

    @_batch(max_batch_size=_MAX_ROWS, batch_wait_timeout_s=0)
    async def run(self, rows: list[list[float]]) -> Any:
        """Return the output of each row of a batch."""
        feeds = {self._input: np.array(rows, np.float32)}
        answers: list[Any] = self._session.run([self._output], feeds)[0].tolist()
        return answers


def main(address: str, port: str, texts: str, tensors: str) -> None:
    """Deploy both applications."""
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    targets = {"texts": Texts, "tensors": Tensors}
    for (name, deployment), model in zip(targets.items(), (texts, tensors), strict=True):
        application: Any = deployment
        serve.run(application.bind(model), name=name, route_prefix=f"/{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
