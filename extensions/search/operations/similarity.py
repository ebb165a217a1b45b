"""Compare texts or vectors with each other: the operation of /v1/similarity."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from app.inference.context import RequestContext
from app.inference.unnamed_model import UnnamedModel
from extensions.search.collections.contract import Metric
from extensions.search.collections.similarity import Comparison, Nearest, Stopped, all_scores, nearest, nearest_of
from extensions.search.operations.text_vectors import embed, max_sims
from frameworks.core.errors import InvalidInput
from frameworks.core.vector_search import Vectors
from frameworks.models.residency.subrequests import SubRequests
from frameworks.models.versions.slot import ModelSlot
from frameworks.types import PairRequest, TextRequest

MAX_SCORES = 4_194_304
"""Scores of a response without `top_k`."""
MAX_NEAREST = 1_048_576
"""Results of a response with `top_k`."""
MAX_PAIRS = 65_536
"""Pairs of texts of a request to a model of late interaction."""
MAX_PRODUCTS = 100_000_000_000
"""Multiplications of one request: 20,000 by 20,000 vectors of 250 numbers."""
_SHORT_PRODUCTS = 1_000_000
"""So many take less time than the way to a thread."""

Result = TypeVar("Result", Vectors, Nearest)


@dataclass(frozen=True, slots=True)
class SimilarityRequest:
    """Texts, or vectors: float32 [n, dimensions]. `others` None: the items are compared with each other.

    `top_k`: the nearest of each item; None: all scores. `model`: embeds texts, and cuts long ones with `truncate`.
    """

    items: list[str] | Vectors
    others: list[str] | Vectors | None
    metric: Metric
    top_k: int | None
    model: str | UnnamedModel
    truncate: bool


@dataclass(frozen=True, slots=True)
class SimilarityAnswer:
    """`scores`: of all pairs, or the nearest of each item. `tokens`: read by the model; None for vectors."""

    scores: Vectors | Nearest
    tokens: int | None


class Similarities:
    """The operation. Long products run on one thread, one request after the other: they use the same memory bandwidth.

    Owned by the event loop.
    """

    def __init__(self, parts: SubRequests) -> None:
        self._parts = parts
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="similarity")

    def close(self) -> None:
        """End the thread; queued work is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, context: RequestContext, request: SimilarityRequest) -> SimilarityAnswer:
        """Raises InvalidInput, and what the model of texts raises."""
        num_others = len(request.items if request.others is None else request.others)
        _check_size(len(request.items), num_others, request)
        tokens = None
        items, others = request.items, request.others
        if isinstance(items, list):
            texts = [*items, *(others or ())]
            slot = _slot_of(context, request.model)
            context.model, context.version = slot.name, slot.active.version
            context.answered_name = slot.name
            if isinstance(request.model, str) and request.model != slot.name:
                context.answered_name = context.alias = request.model
            step = f'model "{slot.name}"'
            if slot.spec is not None and slot.spec.text is not None and slot.spec.text.vectors == "multi":
                return await self._by_max_sim(context, slot.name, request, items, others)
            given = TextRequest(texts, truncate=request.truncate)
            answer = await embed(self._parts, context, slot.name, given, step, partial(_field_of, len(items)))
            vectors = np.asarray(answer.embeddings, np.float32)
            items, others = vectors[: len(items)], None if others is None else vectors[len(items) :]
            tokens = answer.tokens
        assert not isinstance(others, list)
        comparison = Comparison(items, others, request.metric)
        if comparison.products > MAX_PRODUCTS:
            raise InvalidInput(
                "items",
                f"expected at most {MAX_PRODUCTS} products of numbers, got {comparison.products}; send fewer items",
            )
        started_s = time.perf_counter()
        try:
            if request.top_k is None:
                return SimilarityAnswer(await self._compute(comparison, partial(all_scores, comparison)), tokens)
            work = partial(nearest, comparison, request.top_k)
            return SimilarityAnswer(await self._compute(comparison, work), tokens)
        finally:
            context.timings.computed(started_s, time.perf_counter())

    async def _by_max_sim(
        self,
        context: RequestContext,
        model: str,
        request: SimilarityRequest,
        items: list[str],
        others: list[str] | Vectors | None,
    ) -> SimilarityAnswer:
        """Score each item as a query with each other text as a document, whatever the metric."""
        assert not isinstance(others, np.ndarray)
        documents = items if others is None else others
        if len(items) * len(documents) > MAX_PAIRS:
            raise InvalidInput(
                "items",
                f"expected at most {MAX_PAIRS} pairs of texts for a model of late interaction, got "
                f"{len(items) * len(documents)}; send fewer items",
            )
        if request.metric is Metric.EUCLID:
            raise InvalidInput("metric", 'expected "cosine" or "dot" for a model of late interaction, got "euclid"')
        width = max(1, len(documents))

        def field_of(pair: int, side: int) -> str:
            index = pair % width if side else pair // width
            return f"items[{index}]" if not side or others is None else f"others[{index}]"

        pairs = PairRequest([(item, document) for item in items for document in documents], request.truncate)
        answer = await max_sims(self._parts, context, model, pairs, f'model "{model}"', field_of)
        scores = np.array(answer.scores, np.float32).reshape(len(items), len(documents))
        if request.top_k is None:
            return SimilarityAnswer(scores, answer.tokens)
        return SimilarityAnswer(nearest_of(scores, request.top_k, others is None), answer.tokens)

    async def _compute(self, comparison: Comparison, work: Callable[[Callable[[], bool]], Result]) -> Result:
        """Run the work at once or on the thread. If the caller is cancelled, it ends after the current block."""
        stopped = threading.Event()
        if comparison.products <= _SHORT_PRODUCTS:
            return work(stopped.is_set)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, stopped.is_set)
        except Stopped as error:
            raise AssertionError("only a cancelled caller stops the work") from error
        finally:
            stopped.set()


def _field_of(num_items: int, index: int) -> str:
    return f"items[{index}]" if index < num_items else f"others[{index - num_items}]"


def _slot_of(context: RequestContext, model: str | UnnamedModel) -> ModelSlot:
    models = context.models
    return models.slot(model if isinstance(model, str) else model.name_in(models.slots))


def _check_size(num_items: int, num_others: int, request: SimilarityRequest) -> None:
    """Raise InvalidInput for a response that would be too large."""
    if request.top_k is None:
        if num_items * num_others > MAX_SCORES:
            raise InvalidInput(
                "items",
                f"expected at most {MAX_SCORES} scores, got {num_items} times {num_others}; set top_k or send fewer",
            )
    elif num_items * min(request.top_k, num_others) > MAX_NEAREST:
        raise InvalidInput(
            "top_k",
            f"expected at most {MAX_NEAREST} results, got {request.top_k} for each of {num_items} items; lower it",
        )
