"""A hand-written endpoint: FastAPI, a pydantic body, ONNX Runtime.

`python -m tools.bench.peers.plain_fastapi MODEL PORT`."""

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    """A flat tensor, validated by pydantic."""

    input_data: list[float]


def build(model: str) -> FastAPI:
    """One route over one session, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    shape = [-1, *session.get_inputs()[0].shape[1:]]
    app = FastAPI()

    @app.post("/infer")
    def infer(body: Body) -> dict[str, Any]:
        tensor = np.array(body.input_data, dtype=np.float32).reshape(shape)
        return {"output_data": session.run(None, {name: tensor})[0].tolist()}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1]), port=int(sys.argv[2]), log_level="error", access_log=False)
