"""A hand-written endpoint for texts: FastAPI and sentence-transformers on one thread.

`python -m tools.bench.peers.sentence_transformers_fastapi FOLDER PORT`.
"""

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Body(BaseModel):
    """One text."""

    text: str


def build(folder: str) -> FastAPI:
    """One route over one model."""
    torch.set_num_threads(1)
    model = SentenceTransformer(folder, device="cpu")
    app = FastAPI()

    @app.post("/infer")
    def infer(body: Body) -> dict[str, Any]:
        return {"embeddings": model.encode([body.text], show_progress_bar=False, normalize_embeddings=True).tolist()}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1]), port=int(sys.argv[2]), log_level="error", access_log=False)
