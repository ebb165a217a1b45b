"""A hand-written endpoint for any task: FastAPI and transformers' pipeline, called in a thread.

`python -m tools.bench.peers.pipeline_fastapi FOLDER TASK PORT`.
"""

import sys
from base64 import b64decode
from io import BytesIO

import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
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
    def infer(body: Body) -> Response:
        given = body.text if body.image is None else Image.open(BytesIO(b64decode(body.image))).convert("RGB")
        # The scores of some pipelines are numbers of NumPy.
        content = orjson.dumps({"predictions": model(given)}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1], sys.argv[2]), port=int(sys.argv[3]), log_level="error", access_log=False)
