"""OpenVINO GenAI's pipeline with continuous batching, behind `POST /v1/completions` of FastAPI.

`python -m tools.bench.peers.openvino_server FOLDER TOKENIZER PRECISION PORT`, in the environment of the peer. The
endpoint knows what the bench asks for: greedy text that no token ends.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

_CACHE_GIB = 1
_SEQUENCES = 16
_IDLE_S = 0.05


class Body(BaseModel):
    """A prompt."""

    prompt: str
    max_tokens: int


class Completions:
    """The pipeline on one thread. It steps while a request runs."""

    def __init__(self, folder: str, tokenizer: str, precision: str) -> None:
        """`precision`: of the arithmetic, f32 or bf16."""
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = _CACHE_GIB
        scheduling.max_num_seqs = _SEQUENCES
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1}
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduling, "CPU", settings)
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[int, tuple[Any, asyncio.Future[list[int]]]] = {}
        self._added = threading.Event()
        self._last = 0

    def start(self) -> None:
        """Step from now on. Call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._step, daemon=True).start()

    async def complete(self, prompt: str, max_tokens: int) -> tuple[str, int, int]:
        """Return the text, and the tokens of the prompt and of the text."""
        ids = self._tokenizer.encode(prompt).ids
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.set_eos_token_id(self._tokenizer.get_vocab_size() - 1)
        self._last += 1
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
        self._running[self._last] = (self._pipeline.add_request(self._last, tensor, config), future)
        self._added.set()
        found = await future
        return self._tokenizer.decode(found), len(ids), len(found)

    def _step(self) -> None:
        assert self._loop is not None
        while True:
            if not self._pipeline.has_non_finished_requests():
                self._added.wait(_IDLE_S)
                self._added.clear()
                continue
            self._pipeline.step()
            for number, (handle, future) in [*self._running.items()]:
                if handle.get_status() == genai.GenerationStatus.FINISHED:
                    del self._running[number]
                    self._loop.call_soon_threadsafe(future.set_result, handle.read_all()[0].generated_ids)


def build(completions: Completions) -> FastAPI:
    """Return the application with its two routes."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        completions.start()
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/completions")
    async def complete(body: Body) -> dict[str, Any]:
        text, prompt_tokens, tokens = await completions.complete(body.prompt, body.max_tokens)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        return {"choices": [{"text": text}], "usage": usage}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    made = Completions(*sys.argv[1:4])
    uvicorn.run(build(made), port=int(sys.argv[4]), log_level="error", access_log=False)
