"""Requests to a cache of responses: pairs whose responses may differ, a model, and a sender that counts."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.inference.response_cache import CacheableRequest, ResponseCache
from app.workers.worker_responses import WorkerResponses
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.types import Conversation, Message, MessageImage
from frameworks.types import Answer, ConversationRequest, ImagePairRequest, PairRequest, TensorBatch, TextRequest
from tests.support.loops import HANGS_AFTER_S, task


def tensor(*x: object, dtype: str = "f4", outputs: tuple[str, ...] | None = None) -> TensorBatch:
    return TensorBatch({"x": np.array(x, dtype)}, outputs)


def talk(data: bytes) -> Conversation:
    return Conversation((Message("user", "a", images=(MessageImage(data, 0, ""),)),))


ONE = TextRequest(["a", "b"])
DIFFERENT: dict[str, tuple[CacheableRequest, CacheableRequest]] = {
    "dtype": (tensor(0, 0), tensor(0, 0, dtype="i4")),
    "dtype of one size": (tensor(1, dtype="i8"), tensor(1, dtype="u8")),
    "shape": (tensor(1, 2, 3, 4), TensorBatch({"x": np.array([[1, 2], [3, 4]], "f4")})),
    "shape of nothing": (TensorBatch({"x": np.empty((0, 2))}), TensorBatch({"x": np.empty((0, 3))})),
    "bytes": (tensor(1, 2), tensor(1, 3)),
    "zeros of both signs": (tensor(0.0), tensor(-0.0)),
    "outputs": (tensor(1, outputs=("y",)), tensor(1, outputs=("z",))),
    "all outputs": (tensor(1), tensor(1, outputs=("y",))),
    "name of the input": (TensorBatch({"x": np.ones(1)}), TensorBatch({"z": np.ones(1)})),
    "which input": (
        TensorBatch({"x": np.ones(1), "z": np.zeros(1)}),
        TensorBatch({"x": np.zeros(1), "z": np.ones(1)}),
    ),
    "one input less": (TensorBatch({"x": np.ones(1), "z": np.zeros(1)}), TensorBatch({"x": np.ones(1)})),
    "strings": (
        TensorBatch({"x": np.array(["ab", "c"], object)}),
        TensorBatch({"x": np.array(["a", "bc"], object)}),
    ),
    "texts": (ONE, TextRequest(["b", "a"])),
    "how many texts": (TextRequest(["ab"]), TextRequest(["a", "b"])),
    "normalize": (ONE, TextRequest(["a", "b"], normalize=False)),
    "normalize, said": (ONE, TextRequest(["a", "b"], normalize=True)),
    "truncate": (ONE, TextRequest(["a", "b"], truncate=False)),
    "prompt": (ONE, TextRequest(["a", "b"], prompt="query: ")),
    "raw scores": (ONE, TextRequest(["a", "b"], raw_scores=True)),
    "raw scores of pairs": (PairRequest([("a", "b")]), PairRequest([("a", "b")], raw_scores=True)),
    "labels of pairs": (PairRequest([("a", "b")]), PairRequest([("a", "b")], with_labels=True)),
    "top_k": (ONE, TextRequest(["a", "b"], top_k=1)),
    "dimensions": (ONE, TextRequest(["a", "b"], dimensions=1)),
    "token ids": (TextRequest([], token_ids=[[1, 2]]), TextRequest([], token_ids=[[1], [2]])),
    "pairs and texts": (ONE, PairRequest([("a", "b")])),
    "pairs": (PairRequest([("a", "b"), ("a", "c")]), PairRequest([("a", "b"), ("c", "a")])),
    "truncated pairs": (PairRequest([("a", "b")]), PairRequest([("a", "b")], truncate=False)),
    "images of pairs": (ImagePairRequest("a", [b"bc"]), ImagePairRequest("a", [b"b", b"c"])),
    "image of a conversation": (ConversationRequest(talk(b"1")), ConversationRequest(talk(b"2"))),
    "end of a conversation": (ConversationRequest(talk(b"1")), ConversationRequest(talk(b"1"), "response")),
}


@dataclass
class Model:
    """A model that answers on release. `num_runs`: number of calls."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Callable[[int], Answer] = lambda run: {"y": np.array([run])}
    num_runs: int = 0

    async def __call__(self) -> Answer:
        self.num_runs += 1
        run = self.num_runs
        await self.gate.wait()
        return self.answers(run)


class Sender:
    """Send requests through a cache, and count. `hits` and `misses`: the counters of the cache."""

    responses: ResponseCache | WorkerResponses

    def __init__(self) -> None:
        self.hits: Counter[tuple[str, str]] = Counter()
        self.misses: Counter[tuple[str, str]] = Counter()
        self.joined = 0

    def send(
        self,
        model: Model,
        request: CacheableRequest,
        name: str = "m",
        serving: object = 1,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Task[Any]":
        def joined() -> None:
            self.joined += 1

        return task(self.responses.get_or_run(tenant, name, serving, request, model, joined))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the hits and misses of m."""
        return self.hits["m", ""], self.misses["m", ""]


async def outcomes(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """Return answers and errors. Raises TimeoutError if a request hangs."""
    return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANGS_AFTER_S))
