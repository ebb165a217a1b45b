"""A request's journey, whatever door it came in by: the model's permit is held → manager → lane → answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from frameworks.errors import InvalidInput
from frameworks.runtime import BatchModel
from frameworks.scheduling.batch_lane import BatchLane
from frameworks.scheduling.text_batches import batches_by_length
from frameworks.slot import ModelSlot
from frameworks.text import normalize_rows, scores
from frameworks.types import (
    TEXT_OUTPUT,
    Answer,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    TensorBatch,
    TextRequest,
    Timings,
    TokenBatch,
)

# Tokenising holds no GIL and uses every core by itself; a second thread lets a short request pass a long one.
TOKENIZER_THREADS = 2
_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class InferenceService:
    """Answers requests that a protocol has decoded. The caller holds the slot's permit."""

    def __init__(self) -> None:
        self._tokenizing = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenize")

    async def infer(self, slot: ModelSlot, request: TensorBatch | TextRequest, timings: Timings) -> Answer:
        """Runs the request on the slot's model and adds to `timings` what it took.

        Raises ModelUnavailable's kinds, InvalidInput, OutOfMemory.
        """
        model, lane = slot.ready()
        if isinstance(request, TextRequest):
            return await self._answer_texts(slot, model, lane, request, timings)
        result = await lane.run(request)
        timings.queue_s += result.queue_s
        timings.compute_s += result.compute_s
        return result.outputs

    def close(self) -> None:
        """Ends the tokenizing threads; texts that wait for them are dropped."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def _answer_texts(
        self, slot: ModelSlot, model: BatchModel, lane: BatchLane, request: TextRequest, timings: Timings
    ) -> EmbedAnswer | ClassifyAnswer:
        tokenizer, text = model.tokenizer, model.spec.text
        if tokenizer is None or text is None:
            raise InvalidInput("text", "this model takes no text")
        if not request.texts:
            return ClassifyAnswer([]) if model.spec.task == "classify" else EmbedAnswer(_NO_ROWS, tokens=0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        token_ids = await loop.run_in_executor(self._tokenizing, tokenizer.tokenize, request.texts, request.truncate)
        timings.decode_s += loop.time() - started_s
        rows = await _run_in_batches(slot, lane, token_ids, timings)
        if model.spec.task == "classify":
            return ClassifyAnswer(_ranked(scores(rows, text.multi_label), text.labels, request.top_k))
        normalize = text.normalize if request.normalize is None else request.normalize
        return EmbedAnswer(normalize_rows(rows) if normalize else rows, tokens=sum(map(len, token_ids)))


async def _run_in_batches(slot: ModelSlot, lane: BatchLane, token_ids: list[list[int]], timings: Timings) -> Array:
    """The model's row for every text, of which there is at least one, in the order of the texts.

    One batch at a time: between two of them other requests of this model have their turn, and a caller that leaves
    takes the batches with it that have not run.
    """
    rows: Array | None = None
    for positions in batches_by_length([len(ids) for ids in token_ids], slot.max_batch_size):
        result = await lane.run(TokenBatch([token_ids[i] for i in positions]))
        timings.queue_s += result.queue_s
        timings.compute_s += result.compute_s
        part = result.outputs[TEXT_OUTPUT]
        assert isinstance(part, np.ndarray)
        if rows is None:
            rows = np.empty((len(token_ids), part.shape[1]), dtype=np.float32)
        rows[positions] = part
    assert rows is not None
    return rows


def _ranked(probabilities: Array, labels: tuple[str, ...], top_k: int | None) -> list[list[tuple[str, float]]]:
    """Per text its (label, score) pairs by falling score; equal scores in the order of the labels."""
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    return [[(labels[i], float(row[i])) for i in best] for row, best in zip(probabilities, order.tolist(), strict=True)]
