"""A hand-written endpoint for any task: FastAPI and transformers' pipeline, called in a thread.

`python -m tools.bench.peers.pipeline_fastapi FOLDER TASK PORT`.
"""

import sys
from base64 import b64decode
from io import BytesIO
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from PIL import Image
from pydantic import BaseModel
from transformers import pipeline


class Body(BaseModel):
    """One text, or one image in base64."""

    text: str | None = None
    image: str | None = None


def build(folder: str, task: str) -> FastAPI:
    """One route over one model."""
    torch.set_num_threads(1)
    model = pipeline(task, model=folder, device="cpu")
    app = FastAPI()

    # FastAPI calls a function that is not asynchronous in a thread.
    @app.post("/infer")
    def infer(body: Body) -> dict[str, Any]:
        given = body.text if body.image is None else Image.open(BytesIO(b64decode(body.image))).convert("RGB")
        return {"predictions": model(given)}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1], sys.argv[2]), port=int(sys.argv[3]), log_level="error", access_log=False)
